package roofline

import "slices"

// Counts is what a figure counts, where data sheets are read wrongly most often.
type Counts string

// What figures count.
const (
	Capacity     Counts = "capacity"      // decimal bytes
	Peak         Counts = "peak"          // bytes a second of memory
	Dense        Counts = "dense"         // FLOP a second without sparsity
	OneDirection Counts = "one direction" // peak bytes a second of a GPU's links, of which sheets often give both
	Reached      Counts = "reached"       // bytes a second in one direction of an all-reduce, not a peak
)

// Figure is one number of a data sheet. The zero Figure is one that does not exist.
type Figure struct {
	Value  float64 `json:"value"`
	Counts Counts  `json:"counts"`
	Source string  `json:"source"`
}

// GPU is one row of the catalogue.
type GPU struct {
	Name      string `json:"name"`
	Memory    Figure `json:"memory"`
	Bandwidth Figure `json:"bandwidth"`
	BF16      Figure `json:"bf16"`
	FP8       Figure `json:"fp8"`
	Link      Figure `json:"link"` // of all its scale-up links together

	// Device is a regular expression of the name under which NVIDIA's driver, and with
	// it Nomad's plugin, knows the GPU; empty where neither does.
	Device string `json:"device,omitempty"`
}

const (
	assumed   = "assumptions A3 and A7 of the 70B sizing"
	analysis  = "llm-analysis hardware table"
	mlperf4   = "MLPerf Inference v4.1 system description"
	mlperf6   = "MLPerf Inference v6.0 system description"
	versus    = "published MI300X and H200 comparison, methodology"
	hgx       = "NVIDIA HGX table; its arithmetic is sparse and for eight, halved and divided here"
	nvl72     = "NVIDIA GB200 NVL72 page: 13.4 TB over 72 GPUs"
	blackwell = "published comparison of B200 and GB200, at 1200 W; aiconfigurator test specification"
	ada       = "aiconfigurator hardware table and data sheet"
	l4sheet   = "NVIDIA L4 data sheet; its arithmetic is sparse, halved here"
	rocm      = "ROCm GPU specifications"
)

func capacity(gb float64, src string) Figure  { return Figure{gb * 1e9, Capacity, src} }
func peak(tbs float64, src string) Figure     { return Figure{tbs * 1e12, Peak, src} }
func dense(tflops float64, src string) Figure { return Figure{tflops * 1e12, Dense, src} }
func oneWay(bothGBs float64, s string) Figure { return Figure{bothGBs / 2 * 1e9, OneDirection, s} }
func reached(gbs float64, src string) Figure  { return Figure{gbs * 1e9, Reached, src} }

// catalogue is in the order of GPUs.
var catalogue = []GPU{
	{"assumed-192gb", capacity(192, assumed), peak(5.3, assumed), dense(1300, assumed), dense(2600, assumed), reached(300, assumed), ""},
	{"a100-80gb", capacity(80, analysis), peak(2.039, analysis), dense(312, analysis), Figure{}, oneWay(600, analysis), "A100.*80GB"},
	{"h100-sxm", capacity(80, analysis), peak(3.35, analysis), dense(989.4, analysis), dense(1978.9, analysis), oneWay(900, analysis), "H100 80GB HBM3"},
	{"h200-sxm", capacity(141, mlperf4), peak(4.8, versus), dense(989.4, versus), dense(1978.9, versus), oneWay(900, mlperf4), "\\bH200$"},
	{"b200-sxm", capacity(180, mlperf6), peak(8, hgx), dense(2250, hgx), dense(4500, hgx), oneWay(1800, mlperf6), "\\bB200$"},
	{"gb200", capacity(186, nvl72), peak(8, blackwell), dense(2500, blackwell), dense(5000, blackwell), oneWay(1800, blackwell), "\\bGB200$"},
	{"mi300x", capacity(192, mlperf4), peak(5.3, versus), dense(1307.4, versus), dense(2614.9, versus), oneWay(896, versus), ""},
	{"mi325x", capacity(256, rocm), peak(6, rocm), dense(1307.4, rocm), dense(2614.9, rocm), oneWay(896, rocm), ""},
	{"l40s", capacity(48, ada), peak(0.864, ada), dense(362.05, ada), dense(733, ada), oneWay(64, ada), "\\bL40S$"},
	{"l4", capacity(24, l4sheet), peak(0.3, l4sheet), dense(121, l4sheet), dense(242.5, l4sheet), oneWay(64, l4sheet), "\\bL4$"},
}

// GPUs are the catalogue. "assumed-192gb" is no product but the GPU of a published
// sizing; cards without scale-up links have their PCIe as link.
func GPUs() []GPU { return slices.Clone(catalogue) }

// Lookup finds a GPU by its name.
func Lookup(name string) (GPU, bool) {
	i := slices.IndexFunc(catalogue, func(g GPU) bool { return g.Name == name })
	if i < 0 {
		return GPU{}, false
	}
	return catalogue[i], true
}
