package size

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Unit is what a number counts. Its text is what JSON shows.
type Unit string

// The units. Numbers are kept in the plain unit: bytes, seconds, shares of one.
const (
	Count      Unit = ""
	Tokens     Unit = "tokens"
	Bytes      Unit = "bytes"
	Bandwidth  Unit = "bytes/s"
	Operations Unit = "FLOP"
	Arithmetic Unit = "FLOP/s"
	Share      Unit = "share"
	Change     Unit = "change" // a share that has a sign
	Seconds    Unit = "seconds"
	Rate       Unit = "requests/s"
	TokenRate  Unit = "tokens/s"
	Hours      Unit = "hours"
	Dollars    Unit = "dollars"
	Text       Unit = "text"
)

// suffixes are what a written number may end with; the first of a unit is the one to
// show when it is wrong.
var suffixes = map[Unit]map[string]float64{
	Count:      {"": 1, "k": 1e3, "M": 1e6, "B": 1e9},
	Tokens:     {"": 1, "k": 1e3, "M": 1e6, "B": 1e9, " tokens": 1},
	Bytes:      {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40},
	Bandwidth:  {"GB/s": 1e9, "TB/s": 1e12, "MB/s": 1e6, "GiB/s": 1 << 30},
	Operations: {"TFLOP": 1e12, "GFLOP": 1e9},
	Arithmetic: {"TFLOP/s": 1e12, "PFLOP/s": 1e15},
	Share:      {"%": 0.01},
	Change:     {"%": 0.01},
	Seconds:    {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "s": 1, "m": 60, "h": 3600},
	Rate:       {"/s": 1, "/m": 1.0 / 60, "/h": 1.0 / 3600},
	TokenRate:  {"/s": 1, "k/s": 1e3, " tokens/s": 1},
	Hours:      {"h": 1},
	Dollars:    {"": 1, "k": 1e3, "M": 1e6},
}

var examples = map[Unit]string{
	Count: "80 or 70e9", Tokens: "2048", Bytes: "192GB or 80GiB", Bandwidth: "5.3TB/s", Operations: "286.7TFLOP", Arithmetic: "1300TFLOP/s",
	Share: "70%", Change: "-27%", Seconds: "30ms or 8us", Rate: "300/s", TokenRate: "3000/s", Hours: "720h", Dollars: "$3.00",
}

// quantity is a written number.
type quantity struct {
	value  float64
	digit  float64 // what its last given digit is worth
	factor float64 // of its unit
}

// parse reads a number with its unit. Thousands may be separated by commas.
func (u Unit) parse(text string) (quantity, error) {
	s := strings.ReplaceAll(strings.TrimSpace(text), ",", "")
	if u == Dollars {
		negative := strings.HasPrefix(s, "-")
		s = strings.TrimPrefix(strings.TrimPrefix(s, "-"), "$")
		if negative {
			s = "-" + s
		}
	}
	end := strings.LastIndexAny(s, "0123456789.") + 1
	number, suffix := s[:end], s[end:]
	factor, ok := suffixes[u][suffix]
	if !ok {
		factor, ok = suffixes[u][strings.TrimSpace(suffix)]
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !ok || math.IsInf(v, 0) || math.IsNaN(v) || math.Abs(v*factor) > 1e30 {
		return quantity{}, fmt.Errorf("%q, want a number such as %s", text, examples[u])
	}
	return quantity{v * factor, lastDigit(number) * factor, factor}, nil
}

// lastDigit is what the last digit that means something is worth: of 6,600 the second,
// of 2.50 the last.
func lastDigit(s string) float64 {
	s = strings.TrimLeft(strings.ToLower(s), "+-")
	mantissa, exp, _ := strings.Cut(s, "e")
	power, _ := strconv.Atoi(exp)
	whole, frac, decimal := strings.Cut(mantissa, ".")
	if decimal {
		return math.Pow10(power - len(frac))
	}
	trimmed := strings.TrimRight(whole, "0")
	if trimmed == "" {
		trimmed = whole
	}
	return math.Pow10(power + len(whole) - len(trimmed))
}

// Format writes v as a person would, in u's usual size.
func (u Unit) Format(v float64) string {
	switch u {
	case Bytes:
		return scaled(v, 1000, "B", "kB", "MB", "GB", "TB", "PB")
	case Bandwidth:
		if v >= 1e12 {
			return digits(v/1e12) + " TB/s"
		}
		return digits(v/1e9) + " GB/s"
	case Operations:
		return digits(v/1e12) + " TFLOP"
	case Arithmetic:
		return digits(v/1e12) + " TFLOP/s"
	case Share:
		return digits1(100*v) + "%"
	case Change:
		return fmt.Sprintf("%+.1f%%", 100*v)
	case Seconds:
		return seconds(v)
	case Rate:
		return digits(v) + "/s"
	case TokenRate:
		return thousands(v, 0) + " tokens/s"
	case Hours:
		return digits1(v) + " h"
	case Dollars:
		return dollars(v)
	}
	return digits(v)
}

// Both writes bytes in decimal and in binary units, which differ by 2 to 13 %; other
// units once.
func (u Unit) Both(v float64) string {
	if u != Bytes || v < 1<<10 {
		return u.Format(v)
	}
	return u.Format(v) + " = " + scaled(v, 1024, "B", "KiB", "MiB", "GiB", "TiB", "PiB")
}

func scaled(v, base float64, units ...string) string {
	i := 0
	for ; math.Abs(v) >= base && i < len(units)-1; i++ {
		if units[i][0] == 'G' && math.Abs(v) < 10*base { // 1,165.6 GB say more than 1.17 TB
			break
		}
		v /= base
	}
	// A token's bytes are counted, not rounded.
	if base == 1000 && i == 1 && units[0] == "B" && v*1000 == math.Trunc(v*1000) {
		return thousands(v*1000, 0) + " B"
	}
	return digits(v) + " " + units[i]
}

func seconds(v float64) string {
	ms := math.Abs(v) * 1e3
	switch {
	case v == 0:
		return "0 ms"
	case ms < 0.1:
		return digits(v*1e6) + " µs"
	case ms < 100:
		return thousands(v*1e3, 2) + " ms"
	case ms < 1000:
		return thousands(v*1e3, 1) + " ms"
	case ms < 60e3:
		return thousands(v*1e3, 0) + " ms"
	}
	return digits(v) + " s"
}

func dollars(v float64) string {
	sign := ""
	if v < 0 {
		sign, v = "-", -v
	}
	switch {
	case v == 0 || v >= 100:
		return sign + "$" + thousands(v, 0)
	case v >= 0.1:
		return sign + "$" + thousands(v, 2)
	}
	return sign + "$" + strconv.FormatFloat(v, 'g', 3, 64)
}

// digits writes whole numbers as they are and others with about four digits.
func digits(v float64) string {
	switch a := math.Abs(v); {
	case v == math.Trunc(v) && a < 1e15:
		return thousands(v, 0)
	case a >= 1e4:
		return thousands(v, 0)
	case a >= 100:
		return thousands(v, 1)
	case a >= 0.1:
		return thousands(v, 2)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func digits1(v float64) string {
	if v == math.Trunc(v) {
		return thousands(v, 0)
	}
	return thousands(v, 1)
}

func thousands(v float64, decimals int) string {
	s := strconv.FormatFloat(math.Abs(v), 'f', decimals, 64)
	whole, frac, _ := strings.Cut(s, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if frac != "" {
		whole += "." + frac
	}
	if v < 0 && strings.Trim(whole, "0.,") != "" {
		return "-" + whole
	}
	return whole
}
