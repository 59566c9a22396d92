package tokenizer

import (
	"encoding/json"
	"flag"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/text/unicode/norm"
)

var (
	corpusFile = flag.String("corpus", filepath.Join("testdata", "corpus.json"), "what bench/golden/corpus.py wrote")
	corpusDir  = flag.String("tokenizers", "testdata", "where its tokenizers are")
)

func TestCorpus(t *testing.T) {
	b, err := os.ReadFile(*corpusFile)
	if err != nil {
		t.Fatal(err)
	}
	var corpus struct {
		Texts []string
		Sums  map[string][]uint32
	}
	if err := json.Unmarshal(b, &corpus); err != nil {
		t.Fatal(err)
	}
	if len(corpus.Texts) < 400 || len(corpus.Sums) < 10 {
		t.Fatalf("%d texts and %d tokenizers: the corpus is not whole", len(corpus.Texts), len(corpus.Sums))
	}
	for name, sums := range corpus.Sums {
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile(filepath.Join(*corpusDir, name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			tok, err := Parse(b)
			if err != nil {
				t.Fatal(err)
			}
			wrong := 0
			for i, text := range corpus.Texts {
				ids := tok.Encode(text, true)
				var joined []byte
				for n, id := range ids {
					if n > 0 {
						joined = append(joined, ',')
					}
					joined = strconv.AppendInt(joined, int64(id), 10)
				}
				if crc32.ChecksumIEEE(joined) != sums[i] {
					if wrong++; wrong <= 5 {
						t.Errorf("text %d, %+q: %v differs from the reference", i, text, ids)
					}
				}
			}
			if wrong > 0 {
				t.Errorf("%d of %d texts differ", wrong, len(corpus.Texts))
			}
		})
	}
}

// The slow way must be the library's where that is right.
func TestNormaliseAll(t *testing.T) {
	b, err := os.ReadFile(*corpusFile)
	if err != nil {
		t.Fatal(err)
	}
	var corpus struct{ Texts []string }
	if err := json.Unmarshal(b, &corpus); err != nil {
		t.Fatal(err)
	}
	for _, text := range corpus.Texts {
		if longMarks(text) {
			continue
		}
		for _, f := range []struct {
			form, apart norm.Form
			compose     bool
		}{{norm.NFC, norm.NFD, true}, {norm.NFD, norm.NFD, false}, {norm.NFKC, norm.NFKD, true}, {norm.NFKD, norm.NFKD, false}} {
			if got, want := normaliseAll(text, f.apart, f.compose), f.form.String(text); got != want {
				t.Errorf("form %d of %+q is %+q, want %+q", f.form, text, got, want)
			}
		}
	}
}
