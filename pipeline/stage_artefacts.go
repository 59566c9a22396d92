package pipeline

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"llmops/evidence"
	"llmops/model"
	"llmops/model/safetensors"
	"llmops/pipeline/download"
	"llmops/pipeline/quantise"
)

// maxWeightError is the root mean square error, relative to the weights, that
// no tensor may exceed: beyond it a scheme has lost the matrix. Three mantissa
// bits cost about 2.7 %, eight-bit integers 0.5 to 1.5 %, four-bit ones in groups
// about 10 %, under one scale 15 to 40 %.
var maxWeightError = map[string]float64{
	quantise.FP8Dynamic: 0.05, quantise.FP8Block: 0.05, quantise.FP8BlockUE8M0: 0.05, quantise.FP8Static: 0.05,
	quantise.Int8: 0.05, quantise.Int8Weight: 0.03, quantise.Int4: 0.25, quantise.Int4Tensor: 0.6,
}

func downloadInput(ctx context.Context, a *Attempt) (any, error) {
	return a.Deps.Sources.Identify(ctx, a.Spec.Source)
}

// snapshotKept tells whether the folder of an earlier record still has the
// content that it was recorded with.
func snapshotKept(ctx context.Context, _ *Attempt, r Record) bool {
	var w Weights
	return unmarshal(r.Output, &w) == nil && download.Whole(ctx, w.Dir, model.Digest(w.Digest))
}

func runDownload(ctx context.Context, a *Attempt) (evidence.Verdict, error) {
	root := filepath.Join(a.Deps.Dir, "snapshots")
	if err := a.Intent(ctx, "copy the source to a snapshot", root); err != nil {
		return evidence.Verdict{}, err
	}
	var mu sync.Mutex // serialises the events, which come from several connections
	s, err := a.Deps.Sources.Fetch(ctx, a.Spec.Source, root, func(done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		a.Progress("bytes", done, total)
	})
	if err != nil {
		return evidence.Verdict{}, err
	}
	a.Output(Weights{Dir: s.Dir, Digest: string(s.Digest), Source: s.Source, Bytes: s.Manifest.Size(), Detail: s})
	v := evidence.Check("every file has the digest it had at its source", true, len(s.Manifest.Files), s.Warnings...)
	v.Refs = []string{string(s.Digest)}
	if s.Checked == 0 {
		v.Warnings = append(v.Warnings, "the source has no SHA256SUMS: what was there is what was copied, whatever it was")
	}
	return v, nil
}

func quantiseInput(ctx context.Context, a *Attempt) (any, error) {
	var w Weights
	if err := a.Result(ctx, StageDownload, &w); err != nil {
		return nil, err
	}
	scales := ""
	if path := a.Spec.Quantise.Scales; path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading scales: %w", err)
		}
		scales = string(model.DigestOf(b))
	}
	return quantiseKey(w.Digest, a.Spec, scales), nil
}

// quantiseKey is what the quantised weights depend on: of a table of scales its content,
// wherever it lies.
func quantiseKey(digest string, s Spec, scales string) any {
	s.Quantise.Scales = ""
	key := []any{digest, s.Quantise}
	if scales != "" {
		key = append(key, scales)
	}
	if tp := s.Engine.TensorParallel; tp > 1 { // what so many GPUs cannot split is refused
		key = append(key, tp)
	}
	return key
}

func quantiseOptions(s Spec) (o quantise.Options, err error) {
	o = quantise.Options{Scheme: s.Quantise.Scheme, Keep: s.Quantise.Keep, TensorParallel: s.Engine.TensorParallel}
	if s.Quantise.Scales != "" {
		o.Scales, err = quantise.ReadScales(s.Quantise.Scales)
	}
	return o, err
}

func runQuantise(ctx context.Context, a *Attempt) (evidence.Verdict, error) {
	var src Weights
	if err := a.Result(ctx, StageDownload, &src); err != nil {
		return evidence.Verdict{}, err
	}
	scheme := a.Spec.Quantise.Scheme
	if scheme == "" {
		a.Output(src)
		return evidence.Check("the source is served as it is", true, 1), nil
	}
	in, err := quantiseInput(ctx, a)
	if err != nil {
		return evidence.Verdict{}, err
	}
	name := model.DigestOf(mustJSON(in)).Hex()[:16]
	dst := filepath.Join(a.Deps.Dir, "quantised", name)
	if err := a.Intent(ctx, "write the quantised weights", dst); err != nil {
		return evidence.Verdict{}, err
	}
	if err := os.MkdirAll(filepath.Dir(dst), 0o700); err != nil {
		return evidence.Verdict{}, fmt.Errorf("making room for the quantised weights: %w", err)
	}
	o, err := quantiseOptions(a.Spec)
	if err != nil {
		return evidence.Verdict{}, err
	}
	rep, err := quantise.Run(ctx, src.Dir, dst, o,
		func(done, total int64) { a.Progress("bytes", done, total) })
	if err != nil {
		return evidence.Verdict{}, err
	}
	a.Output(Weights{Dir: rep.Dir, Digest: string(rep.Digest), Bytes: rep.After, Scheme: scheme, Detail: rep})
	v, err := judgeWeights(rep)
	v.Warnings = append(v.Warnings, requantised(scheme, a.Spec.Placement.GPU)...)
	return v, err
}

// requantised warns of weights that an engine changes while it loads them, so that
// what is served is not what was compared here.
func requantised(scheme, gpu string) []string {
	if scheme != quantise.FP8Block || gpu != "b200-sxm" && gpu != "gb200" {
		return nil
	}
	return []string{fmt.Sprintf("the kernels of %s take powers of two as scales: engines quantise these weights a second time while they load them; %s are served as they are", gpu, quantise.FP8BlockUE8M0)}
}

// judgeWeights opens what was written as an engine would, and bounds the error
// of each tensor.
func judgeWeights(rep quantise.Report) (evidence.Verdict, error) {
	c, err := safetensors.OpenDir(rep.Dir)
	if err != nil {
		return evidence.Verdict{}, err
	}
	n := len(c.Tensors())
	if err := c.Close(); err != nil {
		return evidence.Verdict{}, err
	}
	limit := maxWeightError[rep.Scheme]
	worst := quantise.TensorReport{}
	for _, t := range rep.Tensors {
		if t.Error >= worst.Error {
			worst = t
		}
	}
	loss := evidence.Check(fmt.Sprintf("no tensor lost more than %.4g%% of its root mean square", 100*limit), worst.Error <= limit, len(rep.Tensors),
		fmt.Sprintf("worst is %s with %.2f%%", worst.Name, 100*worst.Error))
	loss.Unit, loss.Estimate, loss.Lo, loss.Hi = "share", worst.Error, worst.Error, worst.Error
	v := evidence.All(rep.Scheme+": weights are whole and close to their source",
		evidence.Check("index, headers and digests agree", n > 0, n), loss)
	v.Refs = []string{string(rep.Digest)}
	return v, nil
}
