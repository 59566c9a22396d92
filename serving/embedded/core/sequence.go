package core

import "time"

// Sequence is one prompt and what is generated for it. The exported fields are
// set before Add and not changed after.
//
// What every step looks at stands first: with thousands of sequences in a process,
// the cache lines that they take are what a step costs.
type Sequence struct {
	state state
	plain bool // see Plain
	Score bool // give the log probabilities of the prompt's tokens
	// Hold keeps the blocks after the end, for another engine to fetch, until Release.
	Hold     bool
	computed int // tokens whose keys and values are in blocks
	highest  int // what computed once was, before a preemption
	kept     int // blocks that are in the cache, or were found there
	Max      int // tokens to generate at most; 0 only scores the prompt
	output   []int
	Prompt   []int
	blocks   []int32
	Guide    Guide // restricts the answer; nil: free
	Stop     []int // ids that end it, once Sampling.Min is reached
	// Import are keys and values of the first Imported tokens that another engine
	// computed, in the executor's own form.
	Import   any
	chain    []Key // of the full blocks that are known
	Sampling Sampling

	ID       uint64
	Salt     string // sequences of different salts share no cached block
	Adapter  string // the LoRA adapter to compute with; empty: none
	Priority int    // the lower goes first; equals by arrival
	Imported int

	promised int // blocks of the chain that others may wait for
	scored   int // prompt tokens whose scores were given
	cached   int // how many were found at the first admission
	arrived  time.Duration
	admitted time.Duration
}

// Reset empties a sequence that is done, so that it and its buffers can be used for
// another.
func (s *Sequence) Reset() {
	if s.state == stateWaiting || s.state == stateRunning {
		panic("core: resetting a sequence that is under way")
	}
	*s = Sequence{output: s.output[:0], blocks: s.blocks[:0], chain: s.chain[:0]}
}

type state uint8

const (
	stateNew state = iota
	stateWaiting
	stateRunning
	stateDone
)

// Guide restricts an answer, token by token. It belongs to one sequence.
type Guide interface {
	// Mask sets the logits of all tokens that may not come next to -Inf.
	Mask(logits []float32)
	// Accept moves on by a token that was chosen.
	Accept(id int)
}

// Output is what has been generated so far; it is valid until the next Commit or Reset.
func (s *Sequence) Output() []int { return s.output }

// Plain tells that a sequence wants tokens and nothing else: it has no Stop, Guide,
// Score or Import, and reports no log probabilities. It is known once the sequence is
// added, and saves each step a look at all of these.
func (s *Sequence) Plain() bool { return s.plain }

// Cached is the number of prompt tokens that the cache held or that were imported.
func (s *Sequence) Cached() int { return s.cached }

// Arrived is when Add was called, Admitted when its first token was scheduled.
func (s *Sequence) Arrived() time.Duration  { return s.arrived }
func (s *Sequence) Admitted() time.Duration { return s.admitted }

// At is the token at a position of prompt and output together.
func (s *Sequence) At(i int) int {
	if i < len(s.Prompt) {
		return s.Prompt[i]
	}
	return s.output[i-len(s.Prompt)]
}

// Len is the number of tokens of prompt and output together.
func (s *Sequence) Len() int { return len(s.Prompt) + len(s.output) }

// before is the order in which sequences are served; the last is preempted first.
func (s *Sequence) before(t *Sequence) bool {
	switch {
	case s.Priority != t.Priority:
		return s.Priority < t.Priority
	case s.arrived != t.arrived:
		return s.arrived < t.arrived
	}
	return s.ID < t.ID
}

// Batch is the work of one step. It and what it refers to are valid until Commit.
type Batch struct {
	Rows   []Row
	Tokens int // over all rows
}

// Row is a run of one sequence's tokens.
type Row struct {
	Seq    *Sequence
	Start  int     // position of the first token
	Tokens []int   // at least one
	Blocks []int32 // where keys and values of the whole sequence lie
	Sample bool    // these are the last known tokens: choose the next
	// Import: before computing, put Seq.Import's keys and values of the positions
	// from ImportFrom up to Start into Blocks.
	Import     bool
	ImportFrom int
}

// Token is one token with its log probability before penalties and temperature.
// Rank is 1 for the most likely. Top are the most likely ones, best first.
// Prompt, for a Row of a sequence with Score, are the tokens after those of the
// row, as far as they are of the prompt.
type Token struct {
	ID      int
	Logprob float32
	Rank    int
	Top     []Ranked
	Prompt  []Token
}

// Ranked is a token that might have been.
type Ranked struct {
	ID      int
	Logprob float32
}

// Event tells what a step brought for one sequence.
type Event struct {
	Seq    *Sequence
	Prompt []Token // scores of further prompt tokens
	Token  *Token  // the generated token, or nil; valid during the call
	Finish string  // why the sequence ended: "stop", "length", or "" while it goes on
}
