package quantise

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"llmops/model"
)

// A verdict on a name rests on its segments: checkpoints agree on what they call
// things and differ in what stands before, "model.", "language_model.model." or
// nothing.
var (
	vision = []string{"visual", "vision", "vit", "image_encoder", "image_tower", "multi_modal_projector", "mm_projector", "multimodal_projector",
		"embed_vision", "patch_embed", "patch_merger", "img_projector", "img_processor", "aligner", "mlp1", "connector", "resampler", "vte"}
	audio = []string{"audio", "speech", "whisper", "embed_audio", "talker", "token2wav", "code2wav"}
	mtp   = []string{"mtp", "nextn", "eh_proj", "mtp_block", "mtp_layers", "nextn_predict_layers"}
	// routers choose experts. Engines build them as quantised layers unless told
	// otherwise; a wrong expert costs more than the bytes saved.
	routers    = []string{"gate", "router", "shared_expert_gate"}
	embeddings = []string{"wte", "wpe"}
	heads      = []string{head, "embed_out", "score", "classifier"}
)

// conv1D are the modules of GPT-2 that are no Linear.
var conv1D = []string{"c_attn", "c_fc", "c_proj"}

// head is the module that turns hidden states into logits.
const head = "lm_head"

var layerIndex = regexp.MustCompile(`(?:^|\.)layers\.(\d+)\.`)

// kept is why a module stays whatever its shape, "" if it need not.
func kept(module string, shape model.Shape) string {
	segments := strings.Split(module, ".")
	last := segments[len(segments)-1]
	in := func(names []string, prefixes ...string) bool {
		return slices.ContainsFunc(segments, func(s string) bool {
			return slices.Contains(names, s) || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
		})
	}
	layer := -1
	if m := layerIndex.FindStringSubmatch(module); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			layer = n
		}
	}
	switch {
	case in(vision, "vision_", "visual_"):
		return "vision tower"
	case in(audio, "audio_", "speech_"):
		return "audio tower"
	case in(mtp), shape.Layers > 0 && layer >= shape.Layers:
		return "predicts several tokens (MTP): engines load it as it is"
	case slices.Contains(heads, last):
		if shape.Tied {
			return "output head, tied to the embedding"
		}
		return "output head: its errors go straight to the tokens"
	case last == "weights_proj":
		return "sparse attention's indexer: engines load it as it is"
	case shape.Family == "gpt2" && slices.Contains(conv1D, last):
		return "stored [in, out], by columns: rows would share a scale that no engine expects"
	case in(routers):
		return "router: a wrong expert costs more than its bytes"
	case strings.HasSuffix(last, "norm"), in([]string{"ln_1", "ln_2", "ln_f"}):
		return "norm"
	case in(embeddings, "embed") || strings.Contains(module, "embed"):
		return "embedding: looked up, not multiplied"
	}
	return ""
}

// fusedSets are modules that engines compute as one product, so that all of a
// set must be quantised alike.
var fusedSets = [][]string{
	{"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj"}, {"w1", "w3"}, {"q_a_proj", "kv_a_proj_with_mqa"},
	{"in_proj_qkv", "in_proj_z"}, {"in_proj_b", "in_proj_a"}, {"query", "key", "value"},
}

// product names what a module is computed in together with others: the experts
// of a layer are one, q, k and v are one. It is the module itself when alone.
func product(module string) string {
	if before, _, ok := strings.Cut(module, ".experts."); ok {
		return before + ".experts"
	}
	prefix, last := "", module
	if i := strings.LastIndexByte(module, '.'); i >= 0 {
		prefix, last = module[:i+1], module[i+1:]
	}
	for _, set := range fusedSets {
		if slices.Contains(set, last) {
			return prefix + strings.Join(set, "+")
		}
	}
	return module
}

// spellings are the names that engines may have for a module: they rename the
// parts of models with several towers, and then look for their own name in the
// list of ignored modules.
func spellings(module string) []string {
	out := towers(module)
	// What clips its inputs holds its matrix as "linear"; engines that compute
	// several of them as one look for the module around it.
	if wrapper, ok := strings.CutSuffix(module, ".linear"); ok {
		out = append(out, towers(wrapper)...)
	}
	return out
}

// towers are the names of a module by where engines hang its tower.
func towers(module string) []string {
	out := []string{module}
	if rest, ok := strings.CutPrefix(module, "model.language_model."); ok {
		return append(out, "language_model.model."+rest)
	}
	if rest, ok := strings.CutPrefix(module, "language_model.model."); ok {
		return append(out, "model.language_model."+rest)
	}
	rest, ok := strings.CutPrefix(module, "model.")
	if !ok {
		rest = module
	}
	if first, _, _ := strings.Cut(rest, "."); kept(first, model.Shape{}) != "" && first != head {
		if ok {
			return append(out, rest)
		}
		return append(out, "model."+rest)
	}
	return out
}

// tower is the pattern of all modules of a vision or audio tower, so that those
// are ignored too that a loader names otherwise; "" for other modules.
func tower(module string) string {
	for s := range strings.SplitSeq(module, ".") {
		if r := kept(s, model.Shape{}); r == "vision tower" || r == "audio tower" {
			return `re:(.*\.)?` + regexp.QuoteMeta(s) + `\..*`
		}
	}
	return ""
}
