package cli

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"llmops/fleet/objects"
	"llmops/pipeline/download"
	"llmops/pipeline/download/hub"
)

// sources reads the variables that huggingface_hub and the AWS tools read, so that token,
// cache, mirror, keys and endpoint are what they are there.
func (e *env) sources() download.Sources {
	home := e.getenv("HF_HOME")
	if home == "" {
		home = filepath.Join(cmp.Or(e.getenv("XDG_CACHE_HOME"), filepath.Join(e.getenv("HOME"), ".cache")), "huggingface")
	}
	return download.Sources{Objects: e.objects(), Hub: hub.Options{
		Endpoint: cmp.Or(e.getenv("HF_ENDPOINT"), hub.DefaultEndpoint),
		Token:    e.hubToken(home),
		Cache:    cmp.Or(e.getenv("HF_HUB_CACHE"), e.getenv("HUGGINGFACE_HUB_CACHE"), filepath.Join(home, "hub")),
		Offline:  on(e.getenv("HF_HUB_OFFLINE")) || on(e.getenv("TRANSFORMERS_OFFLINE")),
		Say:      e.say,
	}}
}

// objects is who asks object stores, and where they are.
func (e *env) objects() objects.Options {
	return objects.Options{
		Endpoint:    cmp.Or(e.getenv("AWS_ENDPOINT_URL_S3"), e.getenv("AWS_ENDPOINT_URL")),
		Region:      cmp.Or(e.getenv("AWS_REGION"), e.getenv("AWS_DEFAULT_REGION")),
		AccessKey:   e.getenv("AWS_ACCESS_KEY_ID"),
		SecretKey:   e.getenv("AWS_SECRET_ACCESS_KEY"),
		Session:     e.getenv("AWS_SESSION_TOKEN"),
		Credentials: cmp.Or(e.getenv("AWS_SHARED_CREDENTIALS_FILE"), filepath.Join(e.getenv("HOME"), ".aws", "credentials")),
		Profile:     cmp.Or(e.getenv("AWS_PROFILE"), e.getenv("AWS_DEFAULT_PROFILE")),
	}
}

func on(s string) bool {
	return slices.Contains([]string{"1", "ON", "YES", "TRUE"}, strings.ToUpper(s))
}

// hubToken is HF_TOKEN, else what the login of huggingface_hub has left.
func (e *env) hubToken(home string) string {
	if on(e.getenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
		return ""
	}
	if t := cmp.Or(e.getenv("HF_TOKEN"), e.getenv("HUGGING_FACE_HUB_TOKEN")); t != "" {
		return strings.TrimSpace(t)
	}
	b, err := os.ReadFile(cmp.Or(e.getenv("HF_TOKEN_PATH"), filepath.Join(home, "token")))
	if err != nil {
		return "" // there was no login
	}
	return strings.TrimSpace(string(b))
}
