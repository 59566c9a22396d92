// Package prompt makes the requests of a benchmark: prompts of stated lengths in
// tokens, with the prefixes that they share, answers of stated lengths, adapters
// and sessions.
//
// A [Maker] draws them; the same seed gives the same requests. With the model's
// tokenizer and chat template lengths are exact, which is tested on the first of
// each length and checked by the server's own count in every run. Without them a
// word is taken for a token. No two prompts are the same but for what they are
// told to share, since a cache would answer for the model.
//
// A Maker is not safe for concurrent use; [Ahead] lets it work before its requests
// are due. Nothing here sends or measures.
package prompt

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"llmops/model/chat"
	"llmops/model/tokenizer"
	"llmops/pipeline/benchmark/load"
	"llmops/serving/openai"
)

// Endpoint is what is asked.
type Endpoint string

// The endpoints.
const (
	Chat     Endpoint = "chat"
	Complete Endpoint = "completions"
	Embed    Endpoint = "embeddings"
	Rerank   Endpoint = "rerank"
)

// Options of a Maker.
type Options struct {
	Endpoint Endpoint
	Model    string
	Adapters []Adapter // asked for instead of Model, by their shares
	Input    Mix       // tokens of a prompt, with the template's
	Output   Mix       // tokens of an answer; nil: as many as the model gives
	Natural  bool      // Output is a limit, and the model may end before it
	Prefix   int       // leading tokens of each prompt that are shared
	Prefixes int       // by how many groups; default 1
	Turns    int       // of a session; default 1
	Pause    time.Duration
	Passages int  // that a rerank request ranks; default 10
	PerChunk bool // ask for usage on each event
	Seed     uint64

	Tokenizer *tokenizer.Tokenizer // nil: a word is a token
	Template  *chat.Template       // of chat; nil: nothing is around a message
}

// Adapter is a LoRA adapter by the name that clients ask for, and its share of
// the requests, 0 to 1.
type Adapter struct {
	Name  string
	Share float64
}

// Maker makes requests.
type Maker struct {
	o      Options
	words  []string
	around int         // tokens of the template around a message; -1: not counted yet
	tested map[int]int // prompts of a length that were counted
	rnd    *rand.Rand
	made   int
}

// New checks o.
func New(o Options) (*Maker, error) {
	if o.Prefixes <= 0 {
		o.Prefixes = 1
	}
	if o.Turns <= 0 {
		o.Turns = 1
	}
	if o.Passages <= 0 {
		o.Passages = 10
	}
	share := 0.0
	for _, a := range o.Adapters {
		if a.Name == "" || !(a.Share > 0 && a.Share <= 1) {
			return nil, fmt.Errorf("adapter %q has the share %v, want a name and a share above 0 up to 1", a.Name, a.Share)
		}
		share += a.Share
	}
	switch {
	case share > 1+1e-9:
		return nil, fmt.Errorf("adapters get %.4g of the requests, more than all", share)
	case o.Endpoint != Chat && o.Turns > 1:
		return nil, fmt.Errorf("%s has no turns; sessions are of chats", o.Endpoint)
	case o.Prefix > 0 && (o.Endpoint == Embed || o.Endpoint == Rerank):
		return nil, fmt.Errorf("%s caches no prefix", o.Endpoint)
	}
	m := &Maker{o: o, around: -1, tested: map[int]int{}, rnd: rand.New(rand.NewPCG(o.Seed, 0x70726f6d7074))}
	m.words = vocabulary
	if o.Tokenizer != nil {
		m.words = single(o.Tokenizer)
		if len(m.words) < 2 {
			return nil, errors.New("the tokenizer has no two common words or letters of one token each: prompts of an exact length cannot be made of it")
		}
	}
	return m, nil
}

// single are the words that are one token each, wherever they stand.
func single(t *tokenizer.Tokenizer) (out []string) {
	one := func(w string) bool {
		return len(t.Encode(w, false)) == 1 && len(t.Encode(" "+w+" "+w, false)) == 2
	}
	for _, w := range vocabulary {
		if one(w) {
			out = append(out, w)
		}
	}
	if len(out) >= 16 {
		return out
	}
	for _, w := range strings.Split("abcdefghijklmnopqrstuvwxyz0123456789", "") {
		if one(w) {
			out = append(out, w)
		}
	}
	return out
}

// Next draws the next request.
func (m *Maker) Next(int) (*load.Request, error) {
	in, class := m.o.Input.draw(m.rnd)
	out, _ := m.o.Output.draw(m.rnd)
	return m.one(in, out, class, nil, 0)
}

// Sized makes a request of given lengths whose prompt consists of blocks of size
// tokens; those with the same number have the same text. output 0 leaves the
// length to the model.
func (m *Maker) Sized(input, output int, class string, blocks []uint64, size int) (*load.Request, error) {
	return m.one(input, output, class, blocks, size)
}

// Said makes a chat of one message that somebody wrote. output 0 leaves the length
// of the answer to the model.
func (m *Maker) Said(text string, output int) (*load.Request, error) {
	r, err := load.Chat(openai.ChatRequest{Sampling: m.sampling(m.o.Model, output), Messages: []openai.Message{{Role: "user", Content: openai.Text(text)}}}, m.o.PerChunk)
	if err == nil {
		r.Want = m.want(output)
	}
	return r, err
}

func (m *Maker) one(in, out int, class string, blocks []uint64, size int) (*load.Request, error) {
	m.made++
	name := m.o.Model
	at := m.rnd.Float64()
	for _, a := range m.o.Adapters {
		if at -= a.Share; at < 0 {
			name = a.Name
			break
		}
	}
	if len(m.o.Adapters) > 0 {
		class = strings.TrimPrefix(class+" "+name, " ")
	}
	var r *load.Request
	var err error
	switch m.o.Endpoint {
	case Embed:
		var text string
		if text, err = m.message(in, nil, 0); err != nil {
			return nil, err
		}
		r, err = load.Embed(name, text)
	case Rerank:
		passages := make([]string, m.o.Passages)
		for i := range passages {
			passages[i] = m.text(in, nil, 0)
		}
		r, err = load.Rerank(name, m.text(min(in, queryTokens), nil, 0), passages)
	case Complete:
		r, err = m.complete(name, in, out, blocks, size)
	default:
		r, err = m.chat(name, in, out, blocks, size)
	}
	if err != nil {
		return nil, err
	}
	r.Class = class
	return r, nil
}

// queryTokens bounds the query of a rerank request.
const queryTokens = 16

// sampling is what chats and completions share.
func (m *Maker) sampling(name string, out int) openai.Sampling {
	zero := 0.0
	s := openai.Sampling{Model: name, Temperature: &zero}
	if out > 0 {
		s.MaxTokens = &out
		if !m.o.Natural {
			// Without both, an answer ends where the model ends it, and the run is
			// of another load than it says.
			s.MinTokens, s.IgnoreEOS = &out, true
		}
	}
	return s
}

func (m *Maker) want(out int) int {
	if m.o.Natural {
		return 0
	}
	return out
}

func (m *Maker) complete(name string, in, out int, blocks []uint64, size int) (*load.Request, error) {
	p := openai.Prompt{Texts: []string{m.text(in, blocks, size)}}
	if t := m.o.Tokenizer; t != nil {
		// Ids are counted by nobody differently.
		p = openai.Prompt{Tokens: [][]int{t.Encode(" "+p.Texts[0], false)}}
	}
	r, err := load.Complete(openai.CompletionRequest{Sampling: m.sampling(name, out), Prompt: p}, m.o.PerChunk)
	if err == nil {
		r.Want = m.want(out)
	}
	return r, err
}

func (m *Maker) chat(name string, in, out int, blocks []uint64, size int) (*load.Request, error) {
	first, err := m.message(in, blocks, size)
	if err != nil {
		return nil, err
	}
	messages := []openai.Message{{Role: "user", Content: openai.Text(first)}}
	turn := func(messages []openai.Message) (*load.Request, error) {
		r, err := load.Chat(openai.ChatRequest{Sampling: m.sampling(name, out), Messages: messages}, m.o.PerChunk)
		if err == nil {
			r.Want = m.want(out)
		}
		return r, err
	}
	r, err := turn(messages)
	if err != nil || m.o.Turns == 1 {
		return r, err
	}
	talk := "bench-" + strconv.FormatUint(m.o.Seed, 36) + "-" + strconv.Itoa(m.made)
	// All turns are made now: what follows an answer is sent at once. The answers in
	// the history are of the length that was asked for, and not the server's own.
	rest := make([]*load.Request, m.o.Turns-1)
	for i := range rest {
		next, _ := m.o.Input.draw(m.rnd)
		messages = append(messages,
			openai.Message{Role: "assistant", Content: openai.Text(m.text(max(out, 1), nil, 0))},
			openai.Message{Role: "user", Content: openai.Text(m.text(next, nil, 0))})
		if rest[i], err = turn(messages); err != nil {
			return nil, err
		}
	}
	for i := len(rest) - 1; i >= 0; i-- {
		q := r
		if i > 0 {
			q = rest[i-1]
		}
		q.Next = func() (*load.Request, time.Duration) { return rest[i], m.o.Pause }
	}
	r.Conversation = talk
	for _, q := range rest {
		q.Conversation, q.Class = talk, "later turns"
	}
	return r, nil
}

// tests is how many prompts of each length are counted before their words are
// trusted: counting a long one takes longer than the gap between requests.
const tests = 4

// message is the text of a user's message so that the whole prompt has in tokens.
func (m *Maker) message(in int, blocks []uint64, size int) (string, error) {
	if m.o.Tokenizer == nil {
		return m.text(in, blocks, size), nil
	}
	if m.around < 0 {
		n, err := m.count(m.words[0])
		if err != nil {
			return "", err
		}
		m.around = n - 1
	}
	around := m.around
	for range 8 {
		if in-around < 1 {
			return "", fmt.Errorf("a prompt of %d tokens cannot be: the chat template alone takes %d", in, around)
		}
		text := m.text(in-around, blocks, size)
		if m.tested[in] >= tests {
			return text, nil
		}
		n, err := m.count(text)
		if err != nil {
			return "", err
		}
		if n == in {
			m.around = around
			m.tested[in]++
			return text, nil
		}
		around += n - in
	}
	return "", fmt.Errorf("no prompt of exactly %d tokens was found: the tokenizer counts the same words differently from text to text", in)
}

// count is how many tokens a server would read for one user's message.
func (m *Maker) count(text string) (int, error) {
	if m.o.Template != nil {
		messages, err := json.Marshal([]openai.Message{{Role: "user", Content: openai.Text(text)}})
		if err != nil {
			return 0, err
		}
		if text, err = m.o.Template.Render(chat.Request{Messages: messages, Prompt: true}); err != nil {
			return 0, fmt.Errorf("rendering the chat template: %w", err)
		}
		return len(m.o.Tokenizer.Encode(text, false)), nil
	}
	return len(m.o.Tokenizer.Encode(text, true)), nil
}

// text is n words: of blocks where there are any, else the shared prefix and what
// is this prompt's own.
func (m *Maker) text(n int, blocks []uint64, size int) string {
	var b strings.Builder
	b.Grow(n * 6)
	left := n
	add := func(rnd *rand.Rand, k int) {
		for ; k > 0 && left > 0; k, left = k-1, left-1 {
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(m.words[rnd.IntN(len(m.words))])
		}
	}
	for _, id := range blocks {
		add(rand.New(rand.NewPCG(id, m.o.Seed^0x626c6f636b)), size)
	}
	if len(blocks) == 0 && m.o.Prefix > 0 {
		group := uint64(m.rnd.IntN(m.o.Prefixes))
		add(rand.New(rand.NewPCG(group, m.o.Seed^0x707265666978)), m.o.Prefix)
	}
	add(m.rnd, left)
	return b.String()
}

// Ahead runs source in a goroutine of its own, up to n requests ahead, so that
// making a request delays none. It ends with done.
func Ahead(source load.Source, n int, done <-chan struct{}) load.Source {
	type made struct {
		r   *load.Request
		err error
	}
	out := make(chan made, n)
	go func() {
		for i := 0; ; i++ {
			r, err := source(i)
			select {
			case out <- made{r, err}:
			case <-done:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return func(int) (*load.Request, error) {
		select {
		case m := <-out:
			return m.r, m.err
		case <-done:
			return nil, errors.New("the run has ended")
		}
	}
}

// vocabulary are common English words, which large tokenizers have as one token
// each behind a space.
var vocabulary = strings.Fields(`the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you
were all her she there would their we him been has when who will more no if out so said what up its about into than them can only other time
new some could these two may then do first any my now such like our over man me even most made after also did many before must through back
years where much your way well down should because long each just state those people too mr how little good world make very year still see
own work men day get here old life both between being under three never know same last another while us off might great go come since against
right came take used himself few house use place American during high without again home around small however found part school`)
