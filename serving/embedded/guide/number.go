package guide

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// Digits that a number has at most.
const (
	maxInt, maxFrac, maxExp = 20, 20, 3
)

// limit is a bound of a number; the zero value is none.
type limit struct {
	at     *big.Rat
	strict bool
}

// parseLimit reads a bound; its exponent is kept small, because it is written out.
func parseLimit(text string) (*big.Rat, error) {
	if _, exp, ok := strings.Cut(strings.ToLower(text), "e"); ok && len(strings.TrimLeft(exp, "+-0")) > 1 || len(text) > 64 {
		return nil, fmt.Errorf("%.64s is too long a number or has too large an exponent", text)
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return nil, fmt.Errorf("%q is not a number", text)
	}
	return r, nil
}

// number adds all numbers of JSON, within the digits allowed, or all integers.
func (b *builder) number(from, to int32, integer bool) {
	sign := b.node()
	b.bytes(from, sign, '-', '-')
	if integer { // without -0
		b.bytes(from, to, '0', '0')
	} else {
		b.eps(from, sign)
	}
	whole := b.node()
	end := b.node()
	if !integer {
		b.bytes(sign, end, '0', '0')
	} else {
		b.eps(from, sign)
	}
	b.bytes(sign, whole, '1', '9')
	b.digits(whole, end, maxInt-1)
	if integer {
		b.eps(end, to)
		return
	}
	point, exponent := b.node(), b.node()
	b.eps(end, exponent)
	b.bytes(end, point, '.', '.')
	first := b.node()
	b.bytes(point, first, '0', '9')
	b.digits(first, exponent, maxFrac-1)
	b.eps(exponent, to)
	e, signed, digit := b.node(), b.node(), b.node()
	b.bytes(exponent, e, 'e', 'e')
	b.bytes(exponent, e, 'E', 'E')
	b.eps(e, signed)
	b.bytes(e, signed, '+', '+')
	b.bytes(e, signed, '-', '-')
	b.bytes(signed, digit, '0', '9')
	b.digits(digit, to, maxExp-1)
}

// digits adds none to n digits.
func (b *builder) digits(from, to int32, n int) {
	for range n {
		b.eps(from, to)
		next := b.node()
		b.bytes(from, next, '0', '9')
		from = next
	}
	b.eps(from, to)
}

// bounded adds the numbers from low to high, without exponents.
func (b *builder) bounded(from, to int32, low, high limit, integer bool) error {
	zero := limit{at: new(big.Rat)}
	// The two signs are ranges of their own, and -0 is not written.
	up, down := low, high
	if low.at == nil || low.at.Sign() < 0 {
		up = zero
	}
	if high.at == nil || high.at.Sign() >= 0 {
		down = limit{at: new(big.Rat), strict: true}
	} else {
		down.at = new(big.Rat).Neg(high.at)
	}
	some := false
	if high.at == nil || high.at.Sign() >= 0 {
		some = b.span(from, to, up, high, integer)
	}
	if low.at == nil || low.at.Sign() < 0 {
		if low.at != nil {
			low.at = new(big.Rat).Neg(low.at)
		}
		minus := b.node()
		if b.span(minus, to, down, low, integer) {
			b.bytes(from, minus, '-', '-')
			some = true
		}
	}
	if !some {
		return errors.New("no number that can be written lies between the bounds")
	}
	return nil
}

// decimal is a bound as digits.
type decimal struct {
	whole, frac string
	strict      bool
}

func (l limit) decimal() (decimal, bool) {
	if l.at == nil {
		return decimal{}, false
	}
	n, _ := l.at.FloatPrec() // exact, since it was read from a decimal
	whole, frac, _ := strings.Cut(l.at.FloatString(n), ".")
	return decimal{whole, strings.TrimRight(frac, "0"), l.strict}, true
}

// place is where a number under way stands against its bounds: as long as its
// digits are those of a bound it is tight.
type place struct {
	point     bool
	digits    int // after the point, or all before it
	low, high bool
}

// span adds the numbers between two bounds that are not negative, and reports
// whether there are any. A missing high bound is one that all digits allowed stay
// under.
func (b *builder) span(from, to int32, l, h limit, integer bool) bool {
	low, _ := l.decimal()
	high, bounded := h.decimal()
	some := false
	for length := 1; length <= maxInt; length++ {
		if len(low.whole) > length || bounded && len(high.whole) < length {
			continue
		}
		s := &span{b: b, to: to, length: length, low: low, high: high, integer: integer, nodes: make(map[place]int32), live: make(map[place]bool)}
		start := place{low: len(low.whole) == length, high: bounded && len(high.whole) == length}
		if s.lives(start) {
			b.eps(from, s.at(start))
			some = true
		}
	}
	return some
}

// span adds numbers with so many digits before the point.
type span struct {
	b         *builder
	to        int32
	length    int
	low, high decimal
	integer   bool
	nodes     map[place]int32
	live      map[place]bool
}

// digit is the bound's at a place.
func (s *span) digit(d decimal, p place) byte {
	switch {
	case !p.point:
		return d.whole[p.digits]
	case p.digits < len(d.frac):
		return d.frac[p.digits]
	}
	return '0'
}

// rest reports whether digits other than zero follow in the bound.
func rest(d decimal, p place) bool {
	if !p.point {
		return d.frac != ""
	}
	return p.digits < len(d.frac)
}

// done reports whether the number may end at p.
func (s *span) done(p place) bool {
	switch {
	case !p.point && p.digits < s.length, p.point && p.digits == 0:
		return false
	case p.low && (rest(s.low, p) || s.low.strict):
		return false
	case p.high && s.high.strict && !rest(s.high, p):
		return false
	}
	return true
}

// each calls fn for what may follow p, a range of digits at a time.
func (s *span) each(p place, fn func(lo, hi byte, next place)) {
	if !p.point && p.digits == s.length {
		if !s.integer {
			fn('.', '.', place{point: true, low: p.low, high: p.high})
		}
		return
	}
	if p.point && p.digits >= max(maxFrac, len(s.low.frac)+1, len(s.high.frac)+1) {
		return
	}
	first := byte('0')
	if !p.point && p.digits == 0 && s.length > 1 {
		first = '1'
	}
	lo, hi := first, byte('9')
	if p.low {
		lo = max(first, s.digit(s.low, p))
	}
	if p.high {
		hi = s.digit(s.high, p)
	}
	for d := lo; d <= hi; {
		next := place{p.point, p.digits + 1, p.low && d == s.digit(s.low, p), p.high && d == hi}
		end := d
		if !next.low && !next.high { // up to the high bound's digit all are alike
			end = hi
			if p.high {
				end--
			}
		}
		fn(d, end, next)
		d = end + 1
	}
}

// lives reports whether a number can end from p on.
func (s *span) lives(p place) bool {
	if ok, known := s.live[p]; known {
		return ok
	}
	ok := s.done(p)
	s.each(p, func(_, _ byte, next place) { ok = s.lives(next) || ok })
	s.live[p] = ok
	return ok
}

func (s *span) at(p place) int32 {
	if n, ok := s.nodes[p]; ok {
		return n
	}
	n := s.b.node()
	s.nodes[p] = n
	if s.done(p) {
		s.b.eps(n, s.to)
	}
	s.each(p, func(lo, hi byte, next place) {
		if s.lives(next) {
			s.b.bytes(n, s.at(next), lo, hi)
		}
	})
	return n
}
