package quantise

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"llmops/model/safetensors"
)

// Side files are carried over byte for byte, whether they are files or links into a
// cache; what can run code, a clone's own folders and files of weights that no
// index names are not.
func TestSideFiles(t *testing.T) {
	src := checkpoint(t, safetensors.BF16, gaussian(2), "model.layers.0.a.weight")
	for name, body := range map[string]string{
		"preprocessor_config.json": "p", "chat_template.jinja": "c", "assets/vocab.txt": "v", "pytorch_model.bin": "x", "original/consolidated.00.pth": "x",
		".git/objects/pack": "x", ".cache/huggingface/download/a.lock": "x", "SHA256SUMS": "old", "model.safetensors.index.json.bak": "b",
	} {
		write(t, src, name, body)
	}
	blob := write(t, t.TempDir(), "blob", "template")
	if err := os.Symlink(blob, filepath.Join(src, "generation_config.json")); err != nil {
		t.Fatal(err)
	}
	dst := filepath.Join(t.TempDir(), "out")
	rep, err := Run(t.Context(), src, dst, Options{Scheme: FP8Dynamic}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range rep.Files {
		got = append(got, f.Path)
	}
	want := "SHA256SUMS assets/vocab.txt chat_template.jinja config.json generation_config.json model.safetensors model.safetensors.index.json.bak preprocessor_config.json tokenizer.json"
	if strings.Join(got, " ") != want {
		t.Errorf("carried over\n%s, want\n%s", strings.Join(got, " "), want)
	}
	if b, err := os.ReadFile(filepath.Join(dst, "generation_config.json")); err != nil || string(b) != "template" {
		t.Errorf("a link became %q, %v", b, err)
	}
	if err := syscall.Mkfifo(filepath.Join(src, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), src, dst, Options{Scheme: FP8Dynamic}, quiet); err == nil || !strings.Contains(err.Error(), "pipe: it is not a file") {
		t.Errorf("a pipe: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dst, "config.json")); err != nil {
		t.Errorf("what failed took the earlier result with it: %v", err)
	}
}

func TestResultApartFromSource(t *testing.T) {
	src := checkpoint(t, safetensors.BF16, gaussian(2), "model.layers.0.a.weight")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(src, link); err != nil {
		t.Fatal(err)
	}
	for _, dst := range []string{src, filepath.Join(src, "fp8"), filepath.Dir(src), filepath.Join(link, "fp8"), src + "/."} {
		if _, err := Run(t.Context(), src, dst, Options{Scheme: FP8Dynamic}, quiet); err == nil || !strings.Contains(err.Error(), "lie in each other") {
			t.Errorf("to %s: %v", dst, err)
		}
	}
	if _, err := os.Stat(filepath.Join(src, "model.safetensors")); err != nil {
		t.Error(err)
	}
	if _, err := Run(t.Context(), src, src+"-fp8", Options{Scheme: FP8Dynamic}, quiet); err != nil {
		t.Errorf("beside the source: %v", err)
	}
	if _, err := Run(t.Context(), filepath.Join(src, "none"), src+"-x", Options{Scheme: FP8Dynamic}, quiet); err == nil {
		t.Error("a source that is not there is quantised")
	}
}

// Of two runs to one folder the second is refused, and one that is cancelled
// leaves nothing.
func TestOneWriter(t *testing.T) {
	src := checkpoint(t, safetensors.BF16, gaussian(2), "model.layers.0.a.weight", "model.layers.0.b.weight")
	dst := filepath.Join(t.TempDir(), "out")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Run(ctx, src, dst, Options{Scheme: FP8Dynamic}, func(int64, int64) {
		if _, err := Run(t.Context(), src, dst, Options{Scheme: FP8Dynamic}, quiet); err == nil || !strings.Contains(err.Error(), "is being written by another process") {
			t.Errorf("beside the first: %v", err)
		}
		cancel()
	})
	left, _ := os.ReadDir(filepath.Dir(dst))
	if err == nil && len(left) != 1 || err != nil && (!errors.Is(err, context.Canceled) || len(left) != 0) {
		t.Errorf("%v; left %v", err, left)
	}
}

// helper runs this test alone in a process of its own.
func helper(t *testing.T, attr *syscall.SysProcAttr, env ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env, cmd.SysProcAttr = append(os.Environ(), env...), attr
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A kill in the middle leaves no half of a result, and the next run is not
// hindered by what it left.
func TestKilled(t *testing.T) {
	if src := os.Getenv("QUANTISE_SRC"); src != "" {
		_, err := Run(t.Context(), src, os.Getenv("QUANTISE_DST"), Options{Scheme: FP8Dynamic}, func(int64, int64) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		})
		t.Fatal("survived: ", err)
	}
	src := checkpoint(t, safetensors.BF16, gaussian(2), "model.layers.0.a.weight", "model.layers.0.b.weight")
	dir := t.TempDir()
	dst := filepath.Join(dir, "out")
	out, err := helper(t, nil, "QUANTISE_SRC="+src, "QUANTISE_DST="+dst, "TMPDIR="+t.TempDir())
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("%v\n%s", err, out)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != ".partial-out" {
		t.Fatalf("left %v, %v", left, err)
	}
	got, err := Run(t.Context(), src, dst, Options{Scheme: FP8Dynamic}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Run(t.Context(), src, filepath.Join(t.TempDir(), "out"), Options{Scheme: FP8Dynamic}, quiet)
	if err != nil || got.Digest != want.Digest {
		t.Errorf("%s after a kill, %s without, %v", got.Digest, want.Digest, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
}

// A disk that fills up in the middle is named, and given back.
func TestDiskFull(t *testing.T) {
	if dir := os.Getenv("QUANTISE_FULL"); dir != "" {
		full(t, dir)
		return
	}
	out, err := helper(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}, "QUANTISE_FULL="+t.TempDir())
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Skipf("no disk of its own to be had: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(out, "--- SKIP") {
		t.Skip(out)
	}
}

func full(t *testing.T, disk string) {
	if err := syscall.Mount("none", disk, "tmpfs", 0, "size=6m"); err != nil {
		t.Skipf("no disk of its own to be had: %v", err)
	}
	src := t.TempDir()
	write(t, src, "config.json", decoder("llama", ""))
	put(t, filepath.Join(src, "model.safetensors"), gaussian(4), sized("a.weight", safetensors.BF16, 2048, 2048))
	dst := filepath.Join(disk, "out")
	// What is needed was free when it began.
	_, err := Run(t.Context(), src, dst, Options{Scheme: FP8Dynamic}, func(int64, int64) {
		f, err := os.OpenFile(filepath.Join(disk, "other"), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return
		}
		defer func() { _ = f.Close() }()
		for err == nil {
			_, err = f.Write(make([]byte, 1<<16))
		}
	})
	if err == nil || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "a.weight") {
		t.Errorf("%v, want the full disk and the tensor named", err)
	}
	if left, err := os.ReadDir(disk); err != nil || len(left) != 1 || left[0].Name() != "other" {
		t.Errorf("left %v, %v", left, err)
	}
	// Now it is known before.
	if _, err := Run(t.Context(), src, dst, Options{Scheme: FP8Dynamic}, quiet); err == nil || !strings.Contains(err.Error(), "bytes free, the quantised model needs") {
		t.Errorf("%v", err)
	}
}
