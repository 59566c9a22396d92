// Package prom reads what engines and exporters say of themselves in Prometheus' text
// format.
package prom

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// MaxText is the longest exposition that is read, in bytes.
const MaxText = 16 << 20

// ErrText reports bytes that are no exposition.
var ErrText = errors.New("not Prometheus' text format")

// Samples are the gauges, counters and untyped samples of one exposition, and the sums and
// counts of its histograms and summaries, under the names that end in _sum and _count.
type Samples map[string][]float64

// Parse reads an exposition of at most MaxText bytes.
func Parse(r io.Reader) (s Samples, err error) {
	// The library dereferences nil on a sample that is "{}".
	defer func() {
		if p := recover(); p != nil {
			s, err = nil, fmt.Errorf("%w: %v", ErrText, p)
		}
	}()
	limited := &io.LimitedReader{R: r, N: MaxText + 1}
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(limited)
	if limited.N == 0 {
		return nil, fmt.Errorf("%w: longer than %d bytes", ErrText, MaxText)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrText, err)
	}
	out := Samples{}
	for name, f := range families {
		add := func(name string, v float64) {
			if !math.IsNaN(v) {
				out[name] = append(out[name], v)
			}
		}
		for _, m := range f.GetMetric() {
			switch h, s := m.GetHistogram(), m.GetSummary(); {
			case h != nil:
				add(name+"_sum", h.GetSampleSum())
				add(name+"_count", float64(h.GetSampleCount()))
			case s != nil:
				add(name+"_sum", s.GetSampleSum())
				add(name+"_count", float64(s.GetSampleCount()))
			default:
				if v, ok := value(f.GetType(), m); ok {
					add(name, v)
				}
			}
		}
	}
	return out, nil
}

func value(t dto.MetricType, m *dto.Metric) (float64, bool) {
	switch t {
	case dto.MetricType_GAUGE:
		return m.GetGauge().GetValue(), true
	case dto.MetricType_COUNTER:
		return m.GetCounter().GetValue(), true
	case dto.MetricType_UNTYPED:
		return m.GetUntyped().GetValue(), true
	}
	return 0, false
}

// Sum adds up the series of a name, as those of several engines behind one address. ok
// is false when there is none: what is absent is not 0.
func (s Samples) Sum(name string) (sum float64, ok bool) {
	for _, v := range s[name] {
		sum += v
	}
	return sum, len(s[name]) > 0
}

// Mean is the mean of the series of a name.
func (s Samples) Mean(name string) (mean float64, ok bool) {
	sum, ok := s.Sum(name)
	return sum / float64(max(1, len(s[name]))), ok
}

// Scrape reads what url exposes.
func Scrape(ctx context.Context, c *http.Client, url string) (Samples, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("scraping %s: %s", url, res.Status)
	}
	s, err := Parse(res.Body)
	if err != nil {
		return nil, fmt.Errorf("scraping %s: %w", url, err)
	}
	return s, nil
}
