package nomad

import (
	"encoding/json"
	"reflect"
	"testing"
)

// Of every object that encoding/json takes the same values are picked.
func FuzzPick(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":1}`, ` { "a" : [1,{"b":"}"}] , "c":"\"]", "d":null,"e":true} `, `{"a":{"a":{}},"b":-1.5e3}`, `{"a":"\\","b":[]}`, `{"a":1,}`, `{"a"}`, `[1]`, `{"a":`, `{"a":"x`, `{"é":"ü"}`, `{"a":1 ,"b":2}`, "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got := map[string]any{}
		err := pick(text, func(key, value []byte) error {
			var k string
			if err := json.Unmarshal([]byte(`"`+string(key)+`"`), &k); err != nil {
				return err
			}
			var v any
			if err := json.Unmarshal(value, &v); err != nil {
				return err
			}
			got[k] = v
			return nil
		})
		var want map[string]any
		if json.Unmarshal(text, &want) != nil || want == nil {
			return // what is not JSON may be taken, and must not do harm
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("of %s picked %v, %v, want %v", text, got, err, want)
		}
	})
}
