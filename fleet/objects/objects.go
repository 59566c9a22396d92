// Package objects is a prefix of a bucket in an object store that speaks S3: the one
// place of a fleet for weights, and for blobs that every machine may read.
//
// An object is written whole or not at all, and what is stored by digest is written once.
// Large ones go up in parts, several at a time. The package reads no environment; with no
// keys given it asks what the machine itself may do. All methods may be called at once.
package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"llmops/fleet"
)

// Scheme is how addresses of a bucket begin.
const Scheme = "s3://"

// DefaultEndpoint is the public S3.
const DefaultEndpoint = "https://s3.amazonaws.com"

// ErrDenied reports keys that may not do what was asked, or no keys at all.
var ErrDenied = errors.New("the object store refuses access")

// ErrBucket reports a bucket that does not exist.
var ErrBucket = errors.New("there is no such bucket")

// Options say where the store is and who asks.
type Options struct {
	Endpoint    string // "" is DefaultEndpoint
	Region      string // "": the store is asked
	AccessKey   string // "": Credentials, and then the machine's own role
	SecretKey   string
	Session     string
	Credentials string // a file as the AWS tools keep it
	Profile     string // in that file; "" is default
	Anonymous   bool   // ask as nobody
	HTTP        http.RoundTripper
}

// Object is one of a bucket: its key below the prefix, its size in bytes, and what
// changes with its content.
type Object struct {
	Key  string
	Size int64
	ETag string
}

// Bucket is a prefix of one.
type Bucket struct {
	client       *minio.Client
	name, prefix string
	there        atomic.Bool // the bucket was seen
}

var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// Open opens s3://bucket/prefix without asking the store anything.
func Open(address string, o Options) (*Bucket, error) {
	rest, ok := strings.CutPrefix(address, Scheme)
	name, prefix, _ := strings.Cut(rest, "/")
	prefix = strings.Trim(prefix, "/")
	if !ok || !bucketName.MatchString(name) || prefix != "" && !fs.ValidPath(prefix) {
		return nil, fmt.Errorf("%q: want s3://bucket/prefix", address)
	}
	if o.Endpoint == "" {
		o.Endpoint = DefaultEndpoint
	}
	at, err := url.Parse(o.Endpoint)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return nil, fmt.Errorf("endpoint %q: want https://host", o.Endpoint)
	}
	c, err := minio.New(at.Host, &minio.Options{Creds: o.creds(), Secure: at.Scheme == "https", Region: o.Region, Transport: o.HTTP, TrailingHeaders: true})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return &Bucket{client: c, name: name, prefix: prefix}, nil
}

func (o Options) creds() *credentials.Credentials {
	switch {
	case o.Anonymous:
		return credentials.NewStaticV4("", "", "")
	case o.AccessKey != "":
		return credentials.NewStaticV4(o.AccessKey, o.SecretKey, o.Session)
	}
	return credentials.NewChainCredentials([]credentials.Provider{
		&credentials.FileAWSCredentials{Filename: o.Credentials, Profile: o.Profile},
		&credentials.IAM{},
	})
}

// String is the bucket's address.
func (b *Bucket) String() string { return Scheme + path.Join(b.name, b.prefix) }

func (b *Bucket) key(k string) string { return path.Join(b.prefix, k) }

// said puts an error in words.
func (b *Bucket) said(what, key string, err error) error {
	if err == nil {
		return nil
	}
	at := Scheme + path.Join(b.name, b.key(key))
	switch res := minio.ToErrorResponse(err); {
	case res.Code == minio.NoSuchBucket:
		return fmt.Errorf("%s %s: %w: %s", what, at, ErrBucket, b.name)
	case res.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s %s: %w", what, at, fleet.ErrNotFound)
	case res.StatusCode == http.StatusForbidden, res.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s %s: %w (%s: %s); see AWS_ACCESS_KEY_ID, AWS_PROFILE or the machine's role", what, at, ErrDenied, res.Code, res.Message)
	}
	return fmt.Errorf("%s %s: %w", what, at, err)
}

// List returns the objects below a key, ordered by key.
func (b *Bucket) List(ctx context.Context, under string) ([]Object, error) {
	at := b.key(under)
	if at != "" {
		at += "/"
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var out []Object
	for o := range b.client.ListObjectsIter(ctx, b.name, minio.ListObjectsOptions{Prefix: at, Recursive: true}) {
		if o.Err != nil {
			return nil, b.said("listing", under, o.Err)
		}
		if strings.HasSuffix(o.Key, "/") {
			continue // a console's folder
		}
		key := strings.TrimPrefix(strings.TrimPrefix(o.Key, b.prefix), "/")
		out = append(out, Object{key, o.Size, o.ETag})
	}
	return out, nil
}

// Stat looks at one object; fleet.ErrNotFound.
func (b *Bucket) Stat(ctx context.Context, key string) (Object, error) {
	o, err := b.client.StatObject(ctx, b.name, b.key(key), minio.StatObjectOptions{})
	err = b.said("looking for", key, err)
	if errors.Is(err, fleet.ErrNotFound) && !b.there.Load() {
		// The answer to a look has no room for what it is that is not there.
		if is, e := b.client.BucketExists(ctx, b.name); e == nil && !is {
			return Object{}, fmt.Errorf("looking for %s: %w: %s", key, ErrBucket, b.name)
		}
		b.there.Store(true)
	}
	return Object{key, o.Size, o.ETag}, err
}

// valid is how long an address is honoured. One is made for each request.
const valid = time.Hour

// Address is where anybody may fetch an object for the next hour. The store is not
// asked, except once for its region.
func (b *Bucket) Address(ctx context.Context, key string) (string, error) {
	u, err := b.client.PresignedGetObject(ctx, b.name, b.key(key), valid, nil)
	if err != nil {
		return "", b.said("signing for", key, err)
	}
	return u.String(), nil
}

// Open reads an object; fleet.ErrNotFound.
func (b *Bucket) Open(ctx context.Context, key string) (io.ReadCloser, error) {
	o, err := b.client.GetObject(ctx, b.name, b.key(key), minio.GetObjectOptions{})
	if err == nil {
		_, err = o.Stat() // the first that is asked of the store
	}
	if err != nil {
		return nil, b.said("reading", key, err)
	}
	return o, nil
}

// partSize is what one request sends.
const partSize = 32 << 20

// Write stores size bytes under key, over what is there. The store checks what it gets.
func (b *Bucket) Write(ctx context.Context, key string, r io.Reader, size int64) error {
	_, anywhere := r.(io.ReaderAt)
	_, err := b.client.PutObject(ctx, b.name, b.key(key), r, size, minio.PutObjectOptions{
		PartSize: partSize, NumThreads: 4, ConcurrentStreamParts: !anywhere, ContentType: "application/octet-stream",
	})
	return b.said("writing", key, err)
}
