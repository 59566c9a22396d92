// Package archtest holds the rules of this repository that a compiler does not
// enforce, as tests: who may import whom, that every package says what it is,
// and what nobody may do.
package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "llmops/"

// allowed lists for each top folder which others it may import. Folders below
// it share its rule unless they have one of their own.
var allowed = map[string][]string{
	"model":              {"model"},
	"roofline":           {"roofline", "model"},
	"evidence":           {},
	"fleet":              {"fleet", "model", "roofline"},
	"serving":            {"serving", "fleet", "evidence", "roofline", "model"},
	"pipeline":           {"pipeline", "serving", "fleet", "evidence", "roofline", "model", "internal/prom"},
	"pipeline/download":  {"pipeline/download", "serving", "fleet", "evidence", "roofline", "model"},
	"pipeline/quantise":  {"pipeline/quantise", "serving", "fleet", "evidence", "roofline", "model"},
	"pipeline/benchmark": {"pipeline/benchmark", "pipeline/chart", "serving", "fleet", "evidence", "roofline", "model"},
	"pipeline/eval":      {"pipeline/eval", "serving", "fleet", "evidence", "roofline", "model"},
	"pipeline/canary":    {"pipeline/canary", "serving", "fleet", "evidence", "roofline", "model"},
	"pipeline/report":    {"pipeline/report", "pipeline/chart", "evidence"},
	"pipeline/chart":     {},
	"watch":              {"watch", "pipeline", "serving", "fleet", "evidence", "roofline", "model", "internal/prom"},
	"internal/prom":      {"internal/prom", "evidence"},
	"internal/cli":       {""},
	"internal/tui":       {""},
	"internal/config":    {"model", "roofline", "evidence", "fleet", "serving", "pipeline", "watch"},
	"internal/archtest":  {},
	"cmd":                {"internal/cli"},
	"examples":           {""},
	"bench":              {""},
	"jobs":               {},
	"evals":              {},
	"dashboards":         {},
}

// only lists libraries that one folder alone may import.
var only = map[string]string{
	"github.com/spf13/cobra":              "internal/cli",
	"github.com/charmbracelet/bubbletea":  "internal/tui",
	"github.com/hashicorp/nomad/api":      "fleet/nomad",
	"github.com/prometheus/client_golang": "serving/metric",
	"github.com/prometheus/common":        "internal/prom",
	"github.com/redis/go-redis":           "serving/router/quota",
	"github.com/minio/minio-go":           "fleet/objects",
	"github.com/hashicorp/terraform-exec": "fleet/terraform",
}

// environment are the calls of package os that only internal/cli may make,
// since it alone may depend on where it was started.
var environment = []string{"Getenv", "LookupEnv", "Environ", "Setenv", "ExpandEnv", "UserHomeDir", "UserConfigDir", "UserCacheDir"}

type file struct {
	pkg     string // folder below the root
	name    string
	test    bool
	syntax  *ast.File
	imports []string
}

func files(t *testing.T) []file {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var out []file
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && p != root || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(p) != ".go" {
			return nil
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(p))
		if err != nil {
			return err
		}
		f := file{pkg: filepath.ToSlash(rel), name: d.Name(), test: strings.HasSuffix(p, "_test.go"), syntax: syntax}
		for _, i := range syntax.Imports {
			f.imports = append(f.imports, strings.Trim(i.Path.Value, `"`))
		}
		out = append(out, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func within(pkg, folder string) bool {
	return folder == "" || pkg == folder || strings.HasPrefix(pkg, folder+"/")
}

// rule finds the rule of the closest folder.
func rule(pkg string) ([]string, bool) {
	for p := pkg; p != "."; p = path.Dir(p) {
		if r, ok := allowed[p]; ok {
			return r, true
		}
	}
	return nil, false
}

func TestImports(t *testing.T) {
	for _, f := range files(t) {
		may, ok := rule(f.pkg)
		if !ok {
			t.Errorf("%s/%s: folder %s has no import rule", f.pkg, f.name, f.pkg)
			continue
		}
		for _, imp := range f.imports {
			for lib, home := range only {
				if within(imp, lib) && !within(f.pkg, home) {
					t.Errorf("%s/%s imports %s, which only %s may", f.pkg, f.name, imp, home)
				}
			}
			ours, ok := strings.CutPrefix(imp, module)
			if !ok || f.test {
				continue
			}
			if !slices.ContainsFunc(may, func(m string) bool { return within(ours, m) }) {
				t.Errorf("%s/%s imports %s; its folder may import %q", f.pkg, f.name, ours, may)
			}
			if (within(ours, "examples") || within(ours, "bench")) && !within(f.pkg, "examples") && !within(f.pkg, "bench") {
				t.Errorf("%s/%s imports %s", f.pkg, f.name, imp)
			}
			if within(ours, "internal/config") && !within(f.pkg, "internal") || within(ours, "internal/cli") && f.pkg != "cmd/llmops" {
				t.Errorf("%s/%s imports %s", f.pkg, f.name, ours)
			}
		}
		if !f.test && slices.Contains(f.imports, "testing") && !strings.HasSuffix(f.pkg, "test") {
			t.Errorf("%s/%s imports testing outside a test", f.pkg, f.name)
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	docs := map[string]int{}
	for _, f := range files(t) {
		if _, seen := docs[f.pkg]; !seen {
			docs[f.pkg] = 0
		}
		if f.syntax.Doc != nil {
			docs[f.pkg]++
		}
	}
	for pkg, n := range docs {
		if n != 1 {
			t.Errorf("%s has %d package comments, want one", pkg, n)
		}
	}
}

func TestCallsThatHaveOnePlace(t *testing.T) {
	for _, f := range files(t) {
		if f.test || within(f.pkg, "examples") || within(f.pkg, "bench") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := sel.X.(*ast.Ident)
			if !ok || pkg.Obj != nil {
				return true
			}
			switch {
			case pkg.Name == "os" && sel.Sel.Name == "Exit" && !within(f.pkg, "cmd"):
				t.Errorf("%s/%s calls os.Exit", f.pkg, f.name)
			case pkg.Name == "os" && slices.Contains(environment, sel.Sel.Name) && !within(f.pkg, "internal/cli") && !within(f.pkg, "cmd"):
				t.Errorf("%s/%s reads the environment", f.pkg, f.name)
			case pkg.Name == "time" && sel.Sel.Name == "Sleep":
				t.Errorf("%s/%s calls time.Sleep, which nothing can interrupt", f.pkg, f.name)
			}
			return true
		})
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s/%s has an init function", f.pkg, f.name)
			}
		}
	}
}
