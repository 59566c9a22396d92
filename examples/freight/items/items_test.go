package items

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// allItems gives everything that is evaluated for a seed.
func allItems(t *testing.T, o Options) []Item {
	t.Helper()
	var all []Item
	for _, task := range []string{TaskFreight, TaskJSON, TaskLongContext} {
		suite, err := Suite(task, o)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, suite...)
	}
	return append(all, Canaries(o)...)
}

func TestSuiteSizes(t *testing.T) {
	for task, want := range map[string]int{TaskFreight: 400, TaskJSON: 400, TaskLongContext: 240} {
		got, err := Suite(task, Options{Seed: 3})
		if err != nil || len(got) != want {
			t.Errorf("Suite(%s): %d items, error %v, want %d", task, len(got), err, want)
		}
	}
	if n := len(Canaries(Options{})); n != 16 {
		t.Errorf("Canaries: %d, want 16", n)
	}
	if _, err := Suite("poetry", Options{}); err == nil {
		t.Error("Suite(poetry): no error")
	}
}

func TestSameSeedSameBytes(t *testing.T) {
	text := func(seed uint64) string {
		o := Options{Seed: seed}
		trainer, err := NewTrainer(4, seed)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(allItems(t, o), Traffic(o, 200), Passages(o, 8), trainer.Next(352))
	}
	first, again := text(1), text(1)
	if first != again {
		t.Error("seed 1 gives two texts")
	}
	if first == text(2) {
		t.Error("seeds 1 and 2 give one text")
	}
}

// Every answer must be readable in its document: exactly for a field, after removing the digit grouping for a number.
func TestAnswersAreInTheDocument(t *testing.T) {
	normal := strings.NewReplacer(",", "", ".", "", " ", "", "'", "")
	in := func(doc, answer string) bool {
		return strings.Contains(doc, answer) || strings.Contains(normal.Replace(doc), normal.Replace(answer))
	}
	for _, it := range allItems(t, Options{Seed: 5}) {
		doc, question, ok := strings.Cut(it.Messages[0].Content, "\n\n")
		if !ok || question == "" || doc == "" {
			t.Fatalf("%s: no document or no question in %q", it.ID, it.Messages[0].Content)
		}
		switch it.Kind {
		case JSON:
			var got map[string]any
			d := json.NewDecoder(strings.NewReader(it.Answer))
			d.UseNumber()
			if err := d.Decode(&got); err != nil {
				t.Fatalf("%s: answer %q: %v", it.ID, it.Answer, err)
			}
			for k, v := range got {
				if !strings.Contains(question, k) || !in(doc, fmt.Sprint(v)) {
					t.Errorf("%s: %s=%v is not asked in %q or not in\n%s", it.ID, k, v, question, doc)
				}
			}
		case Field, Number:
			if !in(doc, it.Answer) {
				t.Errorf("%s: answer %q is not in\n%s", it.ID, it.Answer, doc)
			}
		default:
			t.Errorf("%s: kind %q", it.ID, it.Kind)
		}
	}
}

func TestQuestionsOfADocumentShareIt(t *testing.T) {
	docs := map[string]string{}
	perDoc := map[string]int{}
	for _, it := range allItems(t, Options{}) {
		doc, _, _ := strings.Cut(it.Messages[0].Content, "\n\n")
		key := it.Task + "/" + it.Doc
		if seen, ok := docs[key]; ok && seen != doc {
			t.Fatalf("%s: another document under the same id %s", it.ID, it.Doc)
		}
		docs[key] = doc
		perDoc[key]++
	}
	for task, want := range map[string]int{TaskFreight: 3, TaskJSON: 4, TaskLongContext: 8} {
		items, n := 0, 0
		for key, count := range perDoc {
			if strings.HasPrefix(key, task+"/") {
				items, n = items+count, n+1
			}
		}
		if items/n < want {
			t.Errorf("%s: %d items on %d documents, want at least %d a document", task, items, n, want)
		}
	}
}

// signature is what makes a layout: two templates with one signature look alike.
func (t Template) signature() string {
	return fmt.Sprintf("%q %q %q %v %v", t.separator, t.joint, t.group+t.point, t.order, t.labels)
}

func TestHeldOutTemplatesAreNotTrainedOn(t *testing.T) {
	training, pairs := map[string]bool{}, map[string]bool{}
	labels := map[string]bool{}
	for i := range Training.Size() {
		tpl := NewTemplate(Training, i)
		training[tpl.signature()] = true
		pairs[tpl.separator+"\x00"+tpl.joint] = true
		for _, l := range tpl.labels {
			labels[l] = true
		}
	}
	unseen, total := 0, 0
	for i := range HeldOut.Size() {
		tpl := NewTemplate(HeldOut, i)
		if training[tpl.signature()] || pairs[tpl.separator+"\x00"+tpl.joint] {
			t.Errorf("held-out template %d is also a training template: %s", i, tpl.signature())
		}
		for _, l := range tpl.labels {
			total++
			if !labels[l] {
				unseen++
			}
		}
	}
	if share := float64(unseen) / float64(total); share < 0.06 || share > 0.11 {
		t.Errorf("%.1f %% of the held-out labels are unseen in training, want about 8 %%", 100*share)
	}
}

func TestLabelsNameOneFieldOnly(t *testing.T) {
	owner := map[string]key{}
	for _, f := range fields {
		for _, l := range append(append([]string{}, f.labels...), f.heldOut...) {
			l = strings.ToLower(l)
			if other, ok := owner[l]; ok && other != f.key {
				t.Errorf("label %q names both %s and %s", l, other, f.key)
			}
			owner[l] = f.key
		}
	}
}

func TestTemplateNumbers(t *testing.T) {
	for _, c := range []struct{ group, point, plain, want string }{
		{"", ".", "1234567.5", "1234567.5"},
		{",", ".", "1234567.5", "1,234,567.5"},
		{".", ",", "1234.05", "1.234,05"},
		{" ", ",", "123", "123"},
		{"'", ".", "123456", "123'456"},
	} {
		if got := (Template{group: c.group, point: c.point}).number(c.plain); got != c.want {
			t.Errorf("number(%s) with %q and %q: %q, want %q", c.plain, c.group, c.point, got, c.want)
		}
	}
}

func TestNoNoiseNoDamage(t *testing.T) {
	none, some := 0.0, 0.5
	clean, damaged := freightSuite(Options{Noise: &none}), freightSuite(Options{Noise: &some})
	if reflect.DeepEqual(clean, damaged) {
		t.Error("noise changes nothing")
	}
	if s := damage(source(1, "test"), "Gross Weight", 0); s != "Gross Weight" {
		t.Errorf("damage with share 0: %q", s)
	}
}

func TestHaystackSpreadsItsCodes(t *testing.T) {
	r := source(9, "test")
	for _, n := range []int{4, 8} {
		h := newHaystack(r, 1500, n)
		last := -1
		for i, p := range h.codes {
			at := strings.Index(h.text, p.code)
			if at <= last {
				t.Errorf("code %d of %d at byte %d, not after %d", i, n, at, last)
			}
			if low, high := i*len(h.text)/n, (i+1)*len(h.text)/n; at < low-200 || at > high+200 {
				t.Errorf("code %d of %d at byte %d, want within %d to %d", i, n, at, low, high)
			}
			last = at
		}
	}
}

func TestPassageAnswers(t *testing.T) {
	for _, p := range Passages(Options{}, 16) {
		if !strings.HasSuffix(p.Text[:p.Answer], closeUser) || !strings.HasSuffix(p.Text, closeTurn) {
			t.Errorf("%s: the answer of %q does not begin at %d", p.ID, p.Text, p.Answer)
		}
	}
}

func TestTraffic(t *testing.T) {
	all := Traffic(Options{}, DefaultArrivals)
	long, last := 0, 0.0
	prompts := map[string]int{}
	for i, a := range all {
		if a.At < last {
			t.Fatalf("arrival %d at %v, before %v", i, a.At, last)
		}
		last = a.At
		doc, _, _ := strings.Cut(a.Messages[0].Content, "\n\n")
		prompts[doc]++
		if strings.HasPrefix(doc, "Terminal log") {
			long++
		}
	}
	// 3,600 exponential gaps at 20/s: 180 s with a standard error of 3 s.
	if last < 168 || last > 192 {
		t.Errorf("the last arrival is at %v s, want about 180", last)
	}
	if share := float64(long) / float64(len(all)); share < 0.22 || share > 0.28 {
		t.Errorf("%.1f %% of the requests are long, want about 25 %%", 100*share)
	}
	if mean := float64(len(all)) / float64(len(prompts)); mean < 3 {
		t.Errorf("%.1f questions a document, want several", mean)
	}
}

func TestTrainerStages(t *testing.T) {
	for stage := FirstStage; stage <= LastStage; stage++ {
		tr, err := NewTrainer(stage, 1)
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			for _, tokens := range []int{96, 2048} {
				s := tr.Next(tokens)
				if len(s.Branches) == 0 || !strings.HasSuffix(s.Prefix[0].Text, "\n\n") {
					t.Fatalf("stage %d: %+v", stage, s)
				}
				for _, b := range s.Branches {
					question, answer := b[0], b[1]
					if !strings.HasSuffix(question.Text, closeUser) || !strings.HasSuffix(answer.Text, closeTurn) || answer.Weight != 1 {
						t.Fatalf("stage %d: branch %+v", stage, b)
					}
				}
			}
		}
	}
	for _, stage := range []int{1, 6} {
		if _, err := NewTrainer(stage, 1); err == nil {
			t.Errorf("stage %d: no error", stage)
		}
	}
}

// The markup in the training text must be what the chat template makes of the same messages.
func TestMarkupIsTheChatTemplate(t *testing.T) {
	item := Canaries(Options{})[0]
	passage := Passages(Options{}, 1)[0]
	for _, s := range []string{openUser + item.Messages[0].Content + closeUser, passage.Text[:passage.Answer]} {
		if strings.Count(s, "<|im_start|>") != 2 || strings.Count(s, "<|im_end|>") != 1 || !strings.HasPrefix(s, "<|im_start|>user\n") {
			t.Errorf("markup of %q", s)
		}
	}
}
