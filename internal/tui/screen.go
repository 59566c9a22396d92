package tui

import (
	"io"
	"strings"
)

// Screen shows pictures on a terminal, in a screen of their own: what was there before is
// there again after Close. It belongs to one goroutine.
type Screen struct {
	w    io.Writer
	open bool
}

// NewScreen is a screen on the terminal w.
func NewScreen(w io.Writer) *Screen { return &Screen{w: w} }

// The control sequences are xterm's, which every terminal of today has.
const (
	enter   = "\x1b[?1049h\x1b[?25l" // the alternate screen, without a cursor
	leave   = "\x1b[?25h\x1b[?1049l"
	home    = "\x1b[H"
	rest    = "\x1b[K" // erases to the end of the line
	below   = "\x1b[J"
	newline = rest + "\r\n"
)

// Show draws a picture over the one before, line by line, so that nothing flickers.
func (s *Screen) Show(picture string) error {
	text := home + strings.ReplaceAll(picture, "\n", newline) + rest + below
	if !s.open {
		s.open, text = true, enter+text
	}
	_, err := io.WriteString(s.w, text)
	return err
}

// Close gives the terminal back; more than once does nothing more.
func (s *Screen) Close() {
	if s.open {
		s.open = false
		_, _ = io.WriteString(s.w, leave)
	}
}
