package chat

import (
	"strconv"
	"strings"
	"time"
)

// strftime knows the directives that dates in templates use; others stay as they
// are written.
func strftime(t time.Time, format string) string {
	layouts := map[byte]string{
		'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'd': "02", 'H': "15", 'I': "03", 'm': "01", 'M': "04",
		'p': "PM", 'S': "05", 'y': "06", 'Y': "2006", 'Z': "MST", 'z': "-0700", 'j': "002", 'F': "2006-01-02", 'T': "15:04:05",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		switch c := format[i]; c {
		case '%':
			b.WriteByte('%')
		case '-': // glibc: no leading zero
			if i+1 < len(format) {
				i++
				s := t.Format(layouts[format[i]])
				if n, err := strconv.Atoi(s); err == nil {
					s = strconv.Itoa(n)
				}
				b.WriteString(s)
			}
		default:
			if layout, ok := layouts[c]; ok {
				b.WriteString(t.Format(layout))
			} else {
				b.WriteString("%" + string(c))
			}
		}
	}
	return b.String()
}
