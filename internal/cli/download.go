package cli

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"llmops/fleet"
	"llmops/fleet/objects"
	"llmops/pipeline/download"
	"llmops/pipeline/download/hub"
)

// refusals are errors of a source that a person must do something about.
var refusals = []error{objects.ErrDenied, objects.ErrBucket, fleet.ErrNotFound, hub.ErrGated, hub.ErrNotFound, hub.ErrRevision, hub.ErrEntry, hub.ErrForbidden, hub.ErrToken, hub.ErrOffline}

func newDownloadCmd(e *env) *cobra.Command {
	var out, rate string
	var include, exclude []string
	var conns int
	c := &cobra.Command{
		Use:   "download SOURCE --out DIR",
		Short: "Bring a model in and verify every file",
		Long: `Download brings the model in SOURCE to a folder of --out that is named by the digest
of its content. SOURCE is one of

  DIR                        a folder
  hf://org/name@revision     a repository of the Hugging Face Hub
  s3://bucket/prefix         a prefix in an object store that speaks S3
  s3://bucket/prefix#NAME@VERSION
                             a version that llmops models push has stored there
  https://host/folder/       a folder of a web server that has a SHA256SUMS

Every file is verified where it went: by the Hub's digests, and a SHA256SUMS in a
folder or below a prefix must agree. Weights that could run code when loaded are left
behind and named. What was interrupted goes on where it stopped.

A repository goes through the cache that Python's huggingface_hub keeps, and is read
with the same variables: HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_HUB_OFFLINE.
Object stores are reached as the AWS tools do: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL_S3, or by the role of the machine.

  llmops download hf://Qwen/Qwen3-0.6B --out models
  llmops download hf://org/name@v1 --out models --rate 200MiB

` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if out == "" {
				return usage("download needs --out")
			}
			s := e.sources()
			s.Hub.Include, s.Hub.Exclude, s.Hub.Conns = include, exclude, conns
			if rate != "" {
				var n float64
				if _, err := fmt.Sscanf(rate, "%gMiB", &n); err != nil || n <= 0 || !strings.HasSuffix(rate, "MiB") {
					return usage("--rate is %q, want MiB a second such as 200MiB", rate)
				}
				s.Hub.Rate = int64(n * (1 << 20))
			}
			return e.download(cmd.Context(), s, args[0], out)
		},
	}
	c.Flags().StringVar(&out, "out", "", "the folder that snapshots are kept in")
	c.Flags().StringArrayVar(&include, "include", nil, "only files of a server that match this pattern; may be repeated")
	c.Flags().StringArrayVar(&exclude, "exclude", nil, "no files that match this pattern; may be repeated")
	c.Flags().StringVar(&rate, "rate", "", "the most to fetch in a second, as 200MiB")
	c.Flags().IntVar(&conns, "connections", 8, "how many at once")
	return c
}

func (e *env) download(ctx context.Context, s download.Sources, src, out string) error {
	got, err := s.Fetch(ctx, src, out, e.bytes())
	if err != nil {
		return refused(err)
	}
	for _, w := range got.Warnings {
		e.say("warning: %s", w)
	}
	return e.answer(got, func(w *tabwriter.Writer) {
		row(w, "FILE", "SIZE", "DIGEST")
		for _, f := range got.Manifest.Files {
			row(w, f.Path, f.Size, f.Digest.Short())
		}
		row(w, got.Dir, got.Manifest.Size(), got.Digest.Short())
		if got.Source != "" {
			row(w, got.Source, "", "licence "+dash(got.License))
		}
	})
}

// bytes tells how far a transfer is, at what rate and how long it will still take, now
// and then.
func (e *env) bytes() func(done, total int64) {
	var mu sync.Mutex // guards the rest
	began := time.Now()
	last, first := began, int64(-1)
	return func(done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		if first < 0 {
			first = done
		}
		if time.Since(last) < 2*time.Second {
			return
		}
		last = time.Now()
		const mib = 1 << 20
		rate := float64(done-first) / time.Since(began).Seconds()
		left := "unknown"
		if rate > 0 {
			left = time.Duration(float64(total-done) / rate * float64(time.Second)).Round(time.Second).String()
		}
		e.say("%d of %d MiB, %.0f MiB/s, %s left", done/mib, total/mib, rate/mib, left)
	}
}
