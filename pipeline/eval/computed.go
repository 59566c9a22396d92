package eval

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"llmops/serving/openai"
)

// Computed refuses arms that make their answers up, as an engine does that only
// estimates times: there is nothing in them to judge. An engine that does not list
// its models computes.
func Computed(ctx context.Context, arms ...Arm) error {
	for _, a := range arms {
		var models *openai.Models
		err := try(ctx, func(ctx context.Context) (err error) {
			models, err = a.Client.Models(ctx)
			return err
		})
		var status *openai.StatusError
		if errors.As(err, &status) && status.Status == http.StatusNotFound {
			continue
		}
		if err != nil {
			return &ErrArm{a.Name, "its models", err}
		}
		for _, m := range models.Data {
			if how := m.Meta[openai.MetaEstimate]; how != "" {
				return fmt.Errorf("judging the %s by its answers: %s says of itself %q; serve real weights", a.Name, m.ID, how)
			}
		}
	}
	return nil
}
