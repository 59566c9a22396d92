package guide

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// compiler turns a schema into rules.
type compiler struct {
	b     *builder
	root  *value
	rules map[*value]int32
	any   map[string]int32 // rules that need no schema
}

// maxAlternatives bounds anyOf and oneOf, since all that begin alike are followed at
// once, and those of oneOf are compared with one another.
const maxAlternatives = 128

// maxCount bounds minLength and its like, so that counts fit.
const maxCount = 1 << 24

func compileSchema(b *builder, schema []byte) (int32, error) {
	root, err := parseValue(schema)
	if err != nil {
		return 0, err
	}
	c := &compiler{b: b, root: root, rules: make(map[*value]int32), any: make(map[string]int32)}
	return c.rule(root, "")
}

func wrong(at, keyword, format string, args ...any) error {
	return fmt.Errorf("schema at %q: keyword %q: %s", at, keyword, fmt.Sprintf(format, args...))
}

// escape makes a key a part of a JSON pointer.
func escape(key string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(key) }

// rule gives the rule of the schema v, which lies at the JSON pointer at.
func (c *compiler) rule(v *value, at string) (int32, error) {
	if r, ok := c.rules[v]; ok {
		return r, nil
	}
	back := c.b.at
	defer func() { c.b.at = back }()
	r := c.b.rule()
	c.b.rules[r].name = at
	c.rules[v] = r
	return r, c.schema(v, at, c.b.rules[r].start, c.b.rules[r].final)
}

// Annotations say nothing about what is valid.
var annotations = []string{"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly", "writeOnly", "$defs", "definitions"}

// keywords are those of each type; const and enum are values of their own.
var keywords = map[string][]string{
	"object":  {"properties", "required", "additionalProperties"},
	"array":   {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"},
	"string":  {"minLength", "maxLength", "pattern"},
	"number":  {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
	"integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
	"boolean": nil,
	"null":    nil,
}

// types is the order in which the types of a schema are tried.
var types = []string{"object", "array", "string", "number", "integer", "boolean", "null"}

// schema adds v between two nodes of its own rule.
func (c *compiler) schema(v *value, at string, from, to int32) error {
	if v.kind == 't' {
		if !v.yes {
			return fmt.Errorf("schema at %q: false allows no value", at)
		}
		return c.call(from, to, "any")
	}
	if v.kind != '{' {
		return fmt.Errorf("schema at %q: want an object or true", at)
	}
	var used []string
	for _, m := range v.members {
		if !slices.Contains(annotations, m.key) {
			used = append(used, m.key)
		}
	}
	for _, k := range []string{"$ref", "allOf", "anyOf", "oneOf", "const", "enum"} {
		inner := v.get(k)
		if inner == nil {
			continue
		}
		for _, other := range used {
			if other != k && !(other == "type" && (k == "const" || k == "enum")) {
				return wrong(at, other, "not supported beside %q", k)
			}
		}
		switch k {
		case "$ref":
			return c.reference(inner, at, from, to)
		case "const":
			return c.values(v, []*value{inner}, at, k, from, to)
		case "enum":
			if inner.kind != '[' {
				return wrong(at, k, "want a list")
			}
			return c.values(v, inner.items, at, k, from, to)
		}
		return c.alternatives(inner, at, k, from, to)
	}
	for _, k := range used {
		if k == "type" {
			continue
		}
		if !slices.ContainsFunc(types, func(t string) bool { return slices.Contains(keywords[t], k) }) {
			return wrong(at, k, "not supported")
		}
	}
	of, err := c.typesOf(v, used, at)
	if err != nil {
		return err
	}
	for _, t := range of {
		if err := c.typed(t, v, at, from, to); err != nil {
			return err
		}
	}
	return nil
}

// typesOf lists the types that v allows: those it names, or those its keywords are
// for, or all.
func (c *compiler) typesOf(v *value, used []string, at string) ([]string, error) {
	named := v.get("type")
	if named == nil {
		var of []string
		for _, t := range types {
			if t != "integer" && slices.ContainsFunc(keywords[t], func(k string) bool { return slices.Contains(used, k) }) {
				of = append(of, t)
			}
		}
		if len(of) == 0 {
			of = slices.DeleteFunc(slices.Clone(types), func(t string) bool { return t == "integer" })
		}
		return of, nil
	}
	list := named.items
	if named.kind == '"' {
		list = []*value{named}
	}
	if len(list) == 0 {
		return nil, wrong(at, "type", "want a type or a list of types")
	}
	var of []string
	for _, t := range list {
		if t.kind != '"' || !slices.Contains(types, t.text) {
			return nil, wrong(at, "type", "%s is no type", t.compact())
		}
		of = append(of, t.text)
	}
	if slices.Contains(of, "number") {
		of = slices.DeleteFunc(of, func(t string) bool { return t == "integer" })
	}
	for _, k := range used {
		if k != "type" && !slices.ContainsFunc(of, func(t string) bool { return slices.Contains(keywords[t], k) }) {
			return nil, wrong(at, k, "does not apply to type %s", named.compact())
		}
	}
	return of, nil
}

func (c *compiler) typed(t string, v *value, at string, from, to int32) error {
	switch t {
	case "null":
		c.b.literals(from, to, []string{"null"})
		return nil
	case "boolean":
		c.b.literals(from, to, []string{"true", "false"})
		return nil
	case "number", "integer":
		return c.number(v, at, t == "integer", from, to)
	case "string":
		return c.text(v, at, from, to)
	case "array":
		return c.array(v, at, from, to)
	}
	return c.object(v, at, from, to)
}

// call adds a call of one of the rules that need no schema.
func (c *compiler) call(from, to int32, name string) error {
	r, ok := c.any[name]
	if !ok {
		back := c.b.at
		r = c.b.rule()
		c.any[name] = r
		start, final := c.b.rules[r].start, c.b.rules[r].final
		switch name {
		case "string":
			c.b.text(start, final, -1)
		case "number":
			c.b.number(start, final, false)
		default: // "any"
			none := &value{kind: '{'}
			for _, t := range types {
				if t != "integer" {
					if err := c.typed(t, none, "", start, final); err != nil {
						return err
					}
				}
			}
		}
		c.b.at = back
	}
	c.b.eps(c.b.invoke(from, r), to)
	return nil
}

func (c *compiler) reference(ref *value, at string, from, to int32) error {
	if ref.kind != '"' || ref.text != "#" && !strings.HasPrefix(ref.text, "#/") {
		return wrong(at, "$ref", "%s is not a place in this schema, as #/$defs/name is", ref.compact())
	}
	pointer := ref.text[1:]
	target := c.root
	for _, part := range strings.Split(pointer, "/")[1:] {
		key := strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		switch i, err := strconv.Atoi(key); {
		case target.kind == '[' && err == nil && i >= 0 && i < len(target.items):
			target = target.items[i]
		case target.kind == '{' && target.get(key) != nil:
			target = target.get(key)
		default:
			return wrong(at, "$ref", "%q is not in the schema", ref.text)
		}
	}
	r, err := c.rule(target, pointer)
	if err != nil {
		return err
	}
	c.b.eps(c.b.invoke(from, r), to)
	return nil
}

func (c *compiler) values(v *value, list []*value, at, keyword string, from, to int32) error {
	of, err := c.typesOf(v, []string{"type"}, at)
	if err != nil {
		return err
	}
	var texts []string
	for _, one := range list {
		if v.get("type") == nil || slices.ContainsFunc(of, one.is) {
			texts = append(texts, one.compact())
		}
	}
	if len(texts) == 0 {
		return wrong(at, keyword, "has no value of the type")
	}
	c.b.literals(from, to, texts)
	return nil
}

func (c *compiler) alternatives(list *value, at, keyword string, from, to int32) error {
	if list.kind != '[' || len(list.items) == 0 {
		return wrong(at, keyword, "want a list of schemas")
	}
	if keyword == "allOf" && len(list.items) > 1 {
		return wrong(at, keyword, "only one schema is supported")
	}
	if len(list.items) > maxAlternatives {
		return wrong(at, keyword, "has %d schemas: want at most %d", len(list.items), maxAlternatives)
	}
	for i, one := range list.items {
		for j := range i {
			if keyword == "oneOf" && !c.disjoint(one, list.items[j]) {
				return wrong(at, keyword, "alternatives %d and %d may both be valid: use anyOf, or tell them apart by type or by a required property with a const", j, i)
			}
		}
		r, err := c.rule(one, at+"/"+keyword+"/"+strconv.Itoa(i))
		if err != nil {
			return err
		}
		c.b.eps(c.b.invoke(from, r), to)
	}
	return nil
}

func (c *compiler) number(v *value, at string, integer bool, from, to int32) error {
	var low, high limit
	for _, k := range keywords["number"] {
		n := v.get(k)
		if n == nil {
			continue
		}
		if n.kind != '0' {
			return wrong(at, k, "want a number")
		}
		r, err := parseLimit(n.text)
		if err != nil {
			return wrong(at, k, "%v", err)
		}
		into, sign := &low, 1
		if strings.HasSuffix(strings.ToLower(k), "maximum") {
			into, sign = &high, -1
		}
		strict := strings.HasPrefix(k, "exclusive")
		if into.at == nil || r.Cmp(into.at)*sign > 0 || r.Cmp(into.at) == 0 && strict {
			*into = limit{r, strict}
		}
	}
	switch {
	case low.at == nil && high.at == nil && !integer:
		return c.call(from, to, "number")
	case low.at == nil && high.at == nil:
		c.b.number(from, to, true)
		return nil
	}
	if integer {
		low, high = low.whole(1), high.whole(-1)
	}
	if err := c.b.bounded(from, to, low, high, integer); err != nil {
		return fmt.Errorf("schema at %q: keywords \"minimum\" and \"maximum\": %w", at, err)
	}
	return nil
}

// whole is the closest integer that the bound allows, upwards or downwards.
func (l limit) whole(up int) limit {
	if l.at == nil {
		return l
	}
	n := new(big.Int).Div(l.at.Num(), l.at.Denom()) // rounds down: the denominator is positive
	exact := l.at.IsInt()
	switch {
	case up > 0 && (!exact || l.strict):
		n.Add(n, big.NewInt(1))
	case up < 0 && exact && l.strict:
		n.Sub(n, big.NewInt(1))
	}
	return limit{at: new(big.Rat).SetInt(n)}
}

// count reads a bound such as minLength; missing gives the default.
func count(v *value, at, keyword string, missing int) (int, error) {
	n := v.get(keyword)
	if n == nil {
		return missing, nil
	}
	if !n.is("integer") {
		return 0, wrong(at, keyword, "want a whole number")
	}
	i, err := strconv.Atoi(n.text)
	if err != nil || i < 0 || i > maxCount {
		return 0, wrong(at, keyword, "%s: want 0 to %d", n.text, maxCount)
	}
	return i, nil
}

func counts(v *value, at, least, most string) (lo, hi int, err error) {
	if lo, err = count(v, at, least, 0); err != nil {
		return 0, 0, err
	}
	if hi, err = count(v, at, most, -1); err != nil {
		return 0, 0, err
	}
	if hi >= 0 && lo > hi {
		return 0, 0, wrong(at, least, "%d is more than %s %d", lo, most, hi)
	}
	return lo, hi, nil
}

func (c *compiler) text(v *value, at string, from, to int32) error {
	least, most, err := counts(v, at, "minLength", "maxLength")
	if err != nil {
		return err
	}
	if p := v.get("pattern"); p != nil {
		if p.kind != '"' {
			return wrong(at, "pattern", "want a string")
		}
		end := c.b.node()
		if err := (regex{source: p.text, json: true, least: least, most: most}).build(c.b, c.b.literal(from, `"`), end); err != nil {
			return wrong(at, "pattern", "%v", err)
		}
		c.b.bytes(end, to, '"', '"')
		return nil
	}
	if least == 0 && most < 0 {
		return c.call(from, to, "string")
	}
	inner := c.counted(int32(least), int32(most))
	c.b.text(c.b.rules[inner].start, c.b.rules[inner].final, int32(most))
	c.b.eps(c.b.invoke(from, inner), to)
	return nil
}

// counted makes a rule of its own for what is counted.
func (c *compiler) counted(least, most int32) int32 {
	back := c.b.at
	r := c.b.rule()
	c.b.rules[r].least, c.b.rules[r].most = least, most
	c.b.rules[r].name = c.b.rules[back].name
	c.b.at = r
	return r
}

// text adds a string of the characters that the present rule's count allows.
func (b *builder) text(from, to, most int32) {
	back, r := b.at, b.nodes[from].rule
	defer func() { b.at = back }()
	b.at = r
	body, char := b.node(), b.node()
	b.bytes(from, body, '"', '"')
	more := plain(char)
	more.below, more.count = most, true
	b.add(body, more)
	b.runes(char, body, 0x20, '"'-1, false)
	b.runes(char, body, '"'+1, '\\'-1, false)
	b.runes(char, body, '\\'+1, 0x10ffff, false)
	b.escapes(char, body)
	closing := over('"', '"', to)
	closing.atLeast = b.rules[r].least
	b.add(body, closing)
}

// escapes adds one character as an escape; of surrogates only pairs.
func (b *builder) escapes(from, to int32) {
	slash := b.literal(from, `\`)
	for _, c := range []byte(`"\/bfnrt`) {
		b.bytes(slash, to, c, c)
	}
	u := b.literal(slash, "u")
	b.hex(u, b.hexRest(to, 3), "0c", "ef")
	d := b.node()
	b.hex(u, d, "dd")
	b.hex(d, b.hexRest(to, 2), "07")
	low := b.node()
	b.hex(d, b.hexRest(low, 2), "8b")
	second := b.literal(low, `\u`)
	dc := b.node()
	b.hex(second, dc, "dd")
	b.hex(dc, b.hexRest(to, 2), "cf")
}

// hex adds the digits of some ranges, in both cases.
func (b *builder) hex(from, to int32, ranges ...string) {
	for _, r := range ranges {
		for c := hexValue(r[0]); c <= hexValue(r[1]); c++ {
			lower := "0123456789abcdef"[c]
			b.bytes(from, to, lower, lower)
			if c > 9 {
				b.bytes(from, to, lower-'a'+'A', lower-'a'+'A')
			}
		}
	}
}

func hexValue(c byte) int { return strings.IndexByte("0123456789abcdef", c) }

// hexRest is a node from which n hexadecimal digits lead to to.
func (b *builder) hexRest(to int32, n int) int32 {
	for range n {
		from := b.node()
		b.hex(from, to, "0f")
		to = from
	}
	return to
}

func (c *compiler) array(v *value, at string, from, to int32) error {
	least, most, err := counts(v, at, "minItems", "maxItems")
	if err != nil {
		return err
	}
	if u := v.get("uniqueItems"); u != nil && (u.kind != 't' || u.yes) {
		return wrong(at, "uniqueItems", "not supported")
	}
	var prefix []*value
	if p := v.get("prefixItems"); p != nil {
		if p.kind != '[' || len(p.items) == 0 {
			return wrong(at, "prefixItems", "want a list of schemas")
		}
		prefix = p.items
	}
	items := v.get("items")
	if items == nil {
		items = &value{kind: 't', yes: true}
	}
	if items.kind == 't' && !items.yes {
		if least > len(prefix) {
			return wrong(at, "minItems", "%d, but only %d are allowed", least, len(prefix))
		}
		if most < 0 || most > len(prefix) {
			most = len(prefix)
		}
	}
	b := c.b
	// Items before the rest are nodes, the rest is counted.
	at0 := b.literal(from, "[")
	for i := 0; ; i++ {
		if i >= least {
			b.bytes(at0, to, ']', ']')
		}
		if i == most {
			return nil
		}
		if i >= len(prefix) {
			break
		}
		if i > 0 {
			at0 = b.separator(at0, ",")
		}
		r, err := c.rule(prefix[i], at+"/prefixItems/"+strconv.Itoa(i))
		if err != nil {
			return err
		}
		at0 = b.invoke(at0, r)
	}
	var item int32
	if items.kind != 't' {
		if item, err = c.rule(items, at+"/items"); err != nil {
			return err
		}
	}
	value := func(from int32) (int32, error) {
		if items.kind != 't' {
			return b.invoke(from, item), nil
		}
		end := b.node()
		return end, c.call(from, end, "any")
	}
	if len(prefix) > 0 {
		at0 = b.separator(at0, ",")
	}
	// At least one of the rest follows; it is the first that is counted.
	limit := -1
	if most >= 0 {
		limit = most - len(prefix)
	}
	rest := c.counted(int32(max(least-len(prefix), 0)), int32(limit))
	back := b.at
	b.at = rest
	first := b.node()
	one := plain(first)
	one.count = true
	b.add(b.rules[rest].start, one)
	after, err := value(first)
	if err != nil {
		return err
	}
	closing := over(']', ']', b.rules[rest].final)
	closing.atLeast = b.rules[rest].least
	b.add(after, closing)
	more := b.node()
	again := plain(more)
	again.below = int32(limit)
	b.add(after, again)
	b.eps(b.separator(more, ","), b.rules[rest].start)
	b.at = back
	b.eps(b.invoke(at0, rest), to)
	return nil
}

func (c *compiler) object(v *value, at string, from, to int32) error {
	b := c.b
	props := v.get("properties")
	if props != nil && props.kind != '{' {
		return wrong(at, "properties", "want an object")
	}
	if props == nil {
		props = &value{kind: '{'}
	}
	required := make(map[string]bool)
	if r := v.get("required"); r != nil {
		if r.kind != '[' {
			return wrong(at, "required", "want a list of names")
		}
		for _, name := range r.items {
			if name.kind != '"' {
				return wrong(at, "required", "want a list of names")
			}
			if props.get(name.text) == nil {
				return wrong(at, "required", "%q is not in properties", name.text)
			}
			required[name.text] = true
		}
	}
	more := v.get("additionalProperties")
	if more == nil {
		more = &value{kind: 't', yes: len(props.members) == 0}
	}
	// Two nodes at each property: nothing was written yet, or something was.
	empty, some := b.literal(from, "{"), b.node()
	for _, p := range props.members {
		r, err := c.rule(p.value, at+"/properties/"+escape(p.key))
		if err != nil {
			return err
		}
		key := b.node()
		b.eps(empty, key)
		b.eps(b.separator(some, ","), key)
		after := b.invoke(b.separator(b.literal(key, quote(p.key)), ":"), r)
		skipped := b.node()
		if !required[p.key] {
			b.eps(some, after)
			b.eps(empty, skipped)
		}
		empty, some = skipped, after
	}
	b.bytes(empty, to, '}', '}')
	b.bytes(some, to, '}', '}')
	if more.kind == 't' && !more.yes {
		return nil
	}
	key := b.node()
	b.eps(empty, key)
	b.eps(b.separator(some, ","), key)
	named := b.node()
	if len(props.members) == 0 {
		if err := c.call(key, named, "string"); err != nil {
			return err
		}
	} else {
		b.otherKeys(key, named, props)
	}
	begin, after := b.separator(named, ":"), b.node()
	if more.kind == 't' {
		if err := c.call(begin, after, "any"); err != nil {
			return err
		}
	} else {
		r, err := c.rule(more, at+"/additionalProperties")
		if err != nil {
			return err
		}
		b.eps(b.invoke(begin, r), after)
	}
	b.eps(after, some)
	return nil
}

// otherKeys adds the keys that need no escapes and are none of props.
func (b *builder) otherKeys(from, to int32, props *value) {
	var names []string
	for _, p := range props.members {
		names = append(names, p.key)
	}
	free := b.node()
	b.keyRunes(free, free, nil)
	b.bytes(free, to, '"', '"')
	var grow func(at int32, names []string)
	grow = func(at int32, names []string) {
		next := make(map[rune][]string)
		taken := false
		for _, n := range names {
			if n == "" {
				taken = true
				continue
			}
			for i, r := range n { // the first character and the rest
				size := len(string(r))
				next[r] = append(next[r], n[i+size:])
				break
			}
		}
		if !taken {
			b.bytes(at, to, '"', '"')
		}
		var runes []rune
		for r := range next {
			runes = append(runes, r)
		}
		slices.Sort(runes)
		b.keyRunes(at, free, runes)
		for _, r := range runes {
			if r < 0x20 || r == '"' || r == '\\' {
				continue // only spelled with an escape
			}
			to := b.node()
			b.runes(at, to, r, r, false)
			grow(to, next[r])
		}
	}
	grow(b.literal(from, `"`), names)
}

// keyRunes adds the characters that need no escapes, but for some in order.
func (b *builder) keyRunes(from, to int32, without []rune) {
	lo := rune(0x20)
	for _, r := range append(without, 0x10ffff+1) {
		for _, span := range [][2]rune{{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x10ffff}} {
			b.runes(from, to, max(lo, span[0]), min(r-1, span[1]), false)
		}
		lo = max(lo, r+1)
	}
}

// disjoint reports whether no value is valid under both schemas, as far as types,
// constants and the constants of required properties tell.
func (c *compiler) disjoint(x, y *value) bool {
	x, y = c.resolve(x), c.resolve(y)
	if x == nil || y == nil || x.kind != '{' || y.kind != '{' {
		return false
	}
	vx, vy := constants(x), constants(y)
	if vx != nil && vy != nil {
		return !slices.ContainsFunc(vx, func(v *value) bool {
			return slices.ContainsFunc(vy, func(w *value) bool { return v.equal(w) })
		})
	}
	tx, ty := c.kinds(x), c.kinds(y)
	if tx == nil || ty == nil {
		return false
	}
	if !slices.ContainsFunc(tx, func(t string) bool { return slices.Contains(ty, t) }) {
		return true
	}
	if len(tx) != 1 || len(ty) != 1 || tx[0] != "object" || ty[0] != "object" {
		return false
	}
	px, py := x.get("properties"), y.get("properties")
	if px == nil || py == nil {
		return false
	}
	for _, m := range px.members {
		other := py.get(m.key)
		if other != nil && needs(x, m.key) && needs(y, m.key) {
			a, b := c.resolve(m.value), c.resolve(other)
			if a != nil && b != nil && constants(a) != nil && constants(b) != nil && c.disjoint(a, b) {
				return true
			}
		}
	}
	return false
}

// equal compares values; numbers by their value.
func (v *value) equal(w *value) bool {
	if v.kind == '0' && w.kind == '0' {
		a, err1 := parseLimit(v.text)
		b, err2 := parseLimit(w.text)
		return err1 != nil || err2 != nil || a.Cmp(b) == 0
	}
	if v.kind == '{' || v.kind == '[' {
		return v.kind == w.kind // not told apart
	}
	return v.compact() == w.compact()
}

// resolve follows references; nil where that does not end.
func (c *compiler) resolve(v *value) *value {
	for range 16 {
		ref := v.get("$ref")
		if v.kind != '{' || ref == nil {
			return v
		}
		if ref.kind != '"' || !strings.HasPrefix(ref.text, "#/") {
			return nil
		}
		target := c.root
		for _, part := range strings.Split(ref.text[2:], "/") {
			if target = target.get(strings.NewReplacer("~1", "/", "~0", "~").Replace(part)); target == nil {
				return nil
			}
		}
		v = target
	}
	return nil
}

func constants(v *value) []*value {
	if one := v.get("const"); one != nil {
		return []*value{one}
	}
	if list := v.get("enum"); list != nil {
		return list.items
	}
	return nil
}

// kinds are the types that v allows, integer as number; nil when unknown.
func (c *compiler) kinds(v *value) []string {
	var of []string
	add := func(t string) {
		if t == "integer" {
			t = "number"
		}
		of = append(of, t)
	}
	for _, one := range constants(v) {
		for _, t := range types {
			if one.is(t) {
				add(t)
			}
		}
	}
	if t := v.get("type"); len(of) == 0 && t != nil {
		if t.kind == '"' {
			add(t.text)
		}
		for _, one := range t.items {
			add(one.text)
		}
	}
	return of
}

func needs(v *value, key string) bool {
	r := v.get("required")
	return r != nil && slices.ContainsFunc(r.items, func(n *value) bool { return n.kind == '"' && n.text == key })
}
