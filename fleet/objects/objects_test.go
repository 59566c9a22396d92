package objects_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"

	"llmops/fleet"
	"llmops/fleet/fleettest"
	"llmops/fleet/objects"
	"llmops/fleet/objects/objectstest"
)

func open(t *testing.T, s *objectstest.Server, prefix string, o objects.Options) *objects.Bucket {
	t.Helper()
	b, err := objects.Open("s3://"+s.Bucket+prefix, o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// real is a store that the environment names, to run the suite against: an address of a
// prefix that is empty, the endpoint and two keys.
func real(t *testing.T) *objects.Bucket {
	t.Helper()
	v := strings.Fields(os.Getenv("LLMOPS_TEST_S3"))
	if len(v) != 4 {
		t.Skip("LLMOPS_TEST_S3 names no store: want \"s3://bucket/prefix endpoint access-key secret-key\"")
	}
	b, err := objects.Open(v[0], objects.Options{Endpoint: v[1], AccessKey: v[2], SecretKey: v[3]})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBlobs(t *testing.T) {
	s := objectstest.New(t, "weights")
	fleettest.Blobs(t, objects.NewBlobs(open(t, s, "/fleet", s.Options()), t.TempDir()))
	for _, k := range s.Keys() {
		if !strings.HasPrefix(k, "fleet/blobs/") {
			t.Errorf("object %s", k)
		}
	}
}

func TestBlobsOfARealStore(t *testing.T) { fleettest.Blobs(t, objects.NewBlobs(real(t), t.TempDir())) }

func TestBucket(t *testing.T) {
	s := objectstest.New(t, "weights")
	suite(t, open(t, s, "/a/b", s.Options()))
	s.Set("a/bc", []byte("not below the prefix"))
	s.Set("a/b/folder/", []byte{})
	got, err := open(t, s, "/a/b/", s.Options()).List(t.Context(), "")
	if err != nil || len(got) != 4 {
		t.Errorf("%+v, %v", got, err)
	}
	whole, err := open(t, s, "", s.Options()).List(t.Context(), "")
	if err != nil || len(whole) != 5 || whole[0].Key != "a/b/deep/0" {
		t.Errorf("%+v, %v", whole, err)
	}
}

func TestBucketOfARealStore(t *testing.T) { suite(t, real(t)) }

// suite is what is used of a store. It leaves four objects below deep.
func suite(t *testing.T, b *objects.Bucket) {
	ctx := t.Context()
	large := make([]byte, 40<<20) // two parts
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(large)
	for i, body := range [][]byte{large, []byte("small"), {}, []byte("x")} {
		if err := b.Write(ctx, "deep/"+string(rune('0'+i)), bytes.NewReader(body), int64(len(body))); err != nil {
			t.Fatal(err)
		}
	}
	in, err := b.Open(ctx, "deep/0")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(in)
	if err := errors.Join(err, in.Close()); err != nil || !bytes.Equal(got, large) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	list, err := b.List(ctx, "deep")
	if err != nil || len(list) != 4 || list[0].Key != "deep/0" || list[0].Size != int64(len(large)) || list[2].Size != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if o, err := b.Stat(ctx, "deep/1"); err != nil || o.Size != 5 || o.ETag != list[1].ETag {
		t.Errorf("%+v, %v", o, err)
	}
	at, err := b.Address(ctx, "deep/1")
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Range", "bytes=1-2")
	req.Header.Set("If-Match", `"`+strings.Trim(list[1].ETag, `"`)+`"`)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil || string(text) != "ma" || res.StatusCode != http.StatusPartialContent {
		t.Errorf("%s: %q, %v", res.Status, text, err)
	}
	for _, missing := range []string{"none", "deep"} {
		if _, err := b.Stat(ctx, missing); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("%s: %v", missing, err)
		}
		if _, err := b.Open(ctx, missing); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("%s: %v", missing, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	s := objectstest.New(t, "weights")
	o := s.Options()
	o.AccessKey = "other"
	if _, err := open(t, s, "", o).List(t.Context(), ""); !errors.Is(err, objects.ErrDenied) || !strings.Contains(err.Error(), "s3://weights") {
		t.Errorf("wrong keys: %v", err)
	}
	b, err := objects.Open("s3://others/x", s.Options())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.List(t.Context(), ""); !errors.Is(err, objects.ErrBucket) || errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("no bucket: %v", err)
	}
	if _, err := b.Stat(t.Context(), "x"); !errors.Is(err, objects.ErrBucket) {
		t.Errorf("no bucket: %v", err)
	}
	for _, bad := range []string{"s3://", "s3://a", "s3:///x", "weights/x", "s3://Upper/x", "s3://weights/../x", "s3://weights/a//b"} {
		if _, err := objects.Open(bad, s.Options()); err == nil {
			t.Errorf("%s was opened", bad)
		}
	}
	o = s.Options()
	o.Endpoint = "store:9000"
	if _, err := objects.Open("s3://weights", o); err == nil {
		t.Error("an endpoint without a scheme was taken")
	}
}
