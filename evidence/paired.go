package evidence

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

// minClusters is the fewest clusters from which a clustered standard error is
// read (Miller, "Adding Error Bars to Evals", 2024).
const minClusters = 10

// priorCorrelation is the correlation of two items of one cluster that is
// assumed as far as the data are silent.
const priorCorrelation = 0.2

// Pair is the score of one item under both arms, each in [0, 1], and the
// cluster it belongs to: items of one cluster, such as questions about one
// document, are not independent. An empty Cluster is a cluster of its own.
type Pair struct {
	Cluster   string
	Base, New float64
}

// NonInferior says whether the new arm scores less than margin below the base
// on the same items, at the given one-sided confidence. margin and the verdict
// are in score units (0.03 is 3 points of accuracy).
//
// It passes when the lower bound of the mean difference lies above -margin and
// fails when the upper bound lies below it; otherwise it is inconclusive. The
// difference of 0/1 scores is Agresti and Min's adjusted estimate (half a pair
// added to each discordant cell: Statistics in Medicine 24, 2005), which stays
// honest when few or no items flip. With several items a cluster the standard
// error is the clustered one if that is larger, and what is added to the cells
// grows by Kish's design effect 1 + (m−1)ρ for m items a cluster and ρ = 0.2:
// where nothing flipped the data cannot show how flips hang together. The true
// level at 95 % is 5 to 7 % with flips both ways, up to 9 % when the few flips
// all go one way, and does not hold when clusters flip as one.
func NonInferior(claim string, pairs []Pair, margin, confidence float64) Verdict {
	v := Verdict{Claim: claim, Unit: "score", Confidence: confidence, N: len(pairs)}
	if len(pairs) == 0 {
		v.Warnings = append(v.Warnings, "no items")
		return v
	}
	if !askable(&v, margin) {
		return v
	}
	d, se, clusters := difference(pairs)
	if !number(d) || !number(se) {
		v.Warnings = append(v.Warnings, "a score is no finite number")
		return v
	}
	z := distuv.UnitNormal.Quantile(confidence)
	v.Estimate, v.Lo, v.Hi = d, d-z*se, d+z*se
	v.Need = PairedItems(flips(pairs), margin, confidence, 0.8)
	if clusters < len(pairs) && clusters < minClusters {
		v.Warnings = append(v.Warnings, fmt.Sprintf("%d clusters are too few to judge how their items hang together; %d are needed", clusters, minClusters))
		return v
	}
	v.Outcome = against(v.Lo, v.Hi, -margin)
	return v
}

// askable tells whether the question has an answer at the verdict's confidence
// and limit; the verdict says why not.
func askable(v *Verdict, limit float64) bool {
	switch {
	case !(v.Confidence > 0.5 && v.Confidence < 1):
		v.Warnings = append(v.Warnings, fmt.Sprintf("a confidence of %v decides nothing: want more than a half and less than one", v.Confidence))
		v.Confidence = 0
		return false
	case !number(limit):
		v.Warnings = append(v.Warnings, fmt.Sprintf("%v is no limit", limit))
		return false
	}
	return true
}

// number tells whether x is a number that can be compared and written down.
func number(x float64) bool { return x-x == 0 }

// against compares an interval with a lower limit that must not be crossed.
func against(lo, hi, limit float64) Outcome {
	switch {
	case lo > limit:
		return Pass
	case hi < limit:
		return Fail
	}
	return Inconclusive
}

// difference returns the adjusted mean difference new − base, its standard
// error and the number of clusters.
func difference(pairs []Pair) (d, se float64, clusters int) {
	n := float64(len(pairs))
	var sum, squares float64
	sums := map[string]float64{}
	sizes := map[string]float64{}
	for i, p := range pairs {
		diff := p.New - p.Base
		sum += diff
		squares += diff * diff
		key := p.Cluster
		if key == "" {
			key = fmt.Sprintf("\x00%d", i)
		}
		sums[key] += diff
		sizes[key]++
	}
	// Half a pair added to each of the two discordant cells leaves the sum of
	// differences as it is and adds 1 to the sum of squares.
	m, c := n+2, float64(len(sums))
	added := 1 + priorCorrelation*(n/c-1)
	d = sum / m
	se = math.Sqrt(max(0, squares+added-m*d*d)) / m
	if len(sums) == len(pairs) || c < 2 {
		return d, se, len(sums)
	}
	var spread float64
	mean := sum / n
	for key, s := range sums {
		r := s - mean*sizes[key]
		spread += r * r
	}
	return d, max(se, math.Sqrt(c/(c-1)*spread+added)/n), len(sums)
}

// flips is the share of items whose score differs between the arms.
func flips(pairs []Pair) float64 {
	if len(pairs) == 0 {
		return 0
	}
	k := 0
	for _, p := range pairs {
		if p.Base != p.New {
			k++
		}
	}
	return float64(k) / float64(len(pairs))
}

// PairedItems is how many independent items NonInferior needs to pass with the
// given power when the arms are equally good and flip the share flips of the
// items: (z_confidence + z_power)² · flips / margin² (research summary of
// Miller 2024, eq. for paired differences with δ = 0), and never fewer than the
// adjusted estimate needs when nothing flips, which is z_confidence / margin.
func PairedItems(flips, margin, confidence, power float64) int {
	if margin <= 0 {
		return math.MaxInt32
	}
	zc := distuv.UnitNormal.Quantile(confidence)
	z := zc + distuv.UnitNormal.Quantile(power)
	return int(math.Ceil(max(z*z*flips/(margin*margin), zc/margin)))
}

// SmallestDrop is the smallest margin that n items can pass with the given
// power when the arms are equally good: PairedItems solved for the margin.
func SmallestDrop(n int, flips, confidence, power float64) float64 {
	if n <= 0 {
		return math.Inf(1)
	}
	zc := distuv.UnitNormal.Quantile(confidence)
	z := zc + distuv.UnitNormal.Quantile(power)
	return max(z*math.Sqrt(flips/float64(n)), zc/float64(n))
}

// Loss is the summed negative log-likelihood of one document under both arms,
// in nats, over the same Tokens.
type Loss struct {
	Tokens    int
	Base, New float64
}

// PerplexityRatio says whether the new arm's perplexity is less than limit
// times the base's (1.01 is one per cent worse) over the same documents.
// Estimate and interval are ratios. The standard error is clustered by
// document, since the tokens of one text are not independent:
// SE(D) = √(C/(C−1) Σ(s_d − D·T_d)²) / T for document sums s_d of tokens T_d.
func PerplexityRatio(claim string, docs []Loss, limit, confidence float64) Verdict {
	v := Verdict{Claim: claim, Unit: "ratio", Confidence: confidence, N: len(docs), Need: minClusters}
	var tokens, sum float64
	for i, d := range docs {
		if !number(d.Base) || !number(d.New) || d.Tokens <= 0 {
			v.Warnings = append(v.Warnings, fmt.Sprintf("document %d has no finite likelihood", i+1))
			return v
		}
		tokens += float64(d.Tokens)
		sum += d.New - d.Base
	}
	if len(docs) < minClusters {
		v.Warnings = append(v.Warnings, fmt.Sprintf("%d documents are fewer than %d", len(docs), minClusters))
		return v
	}
	if !askable(&v, limit) {
		return v
	}
	mean := sum / tokens
	var spread float64
	for _, d := range docs {
		r := d.New - d.Base - mean*float64(d.Tokens)
		spread += r * r
	}
	c := float64(len(docs))
	se := math.Sqrt(c/(c-1)*spread) / tokens
	z := distuv.UnitNormal.Quantile(confidence)
	lo, hi := math.Exp(mean-z*se), math.Exp(mean+z*se)
	if !number(lo) || !number(hi) {
		v.Warnings = append(v.Warnings, "the ratio is beyond all numbers")
		return v
	}
	v.Estimate, v.Lo, v.Hi = math.Exp(mean), lo, hi
	v.Outcome = against(-v.Hi, -v.Lo, -limit)
	return v
}
