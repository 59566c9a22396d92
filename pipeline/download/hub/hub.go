// Package hub brings a repository of the Hugging Face Hub into the cache that
// huggingface_hub keeps, and proves that it arrived.
//
// [Fetch] pins the revision to a commit, lists its files with their digests, checks the
// safetensors headers against the index before gigabytes are read, and fetches files by
// ranges, several at a time. Every file's sha256, or for a small one git's sha1, is
// compared with the listing. Parts that arrived before an interruption, of whatever
// process, are hashed again and kept. What Python has filled is used, and what is left
// can be used by Python: blobs, relative links, refs and trees, under the same locks.
//
// Weights that can run code when loaded are never fetched. The package reads no
// environment. A call may run beside others, in this process or elsewhere, on the same
// cache.
package hub

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// DefaultEndpoint is the public Hub.
const DefaultEndpoint = "https://huggingface.co"

// Scheme is how sources on the Hub begin.
const Scheme = "hf://"

var (
	// ErrGated reports a repository whose terms this token's account has not accepted.
	ErrGated = errors.New("access to this repository is gated")
	// ErrNotFound reports a repository that does not exist, or that this token does
	// not see: the Hub does not tell them apart.
	ErrNotFound = errors.New("no such repository, or it is private and the token does not reach it")
	// ErrRevision reports a branch, tag or commit that does not exist.
	ErrRevision = errors.New("no such revision")
	// ErrEntry reports a file that does not exist at the commit.
	ErrEntry = errors.New("no such file in the repository")
	// ErrForbidden reports a token that lacks a permission.
	ErrForbidden = errors.New("the token may not read this")
	// ErrToken reports a token that the Hub does not know.
	ErrToken = errors.New("the token is not valid")
	// ErrDisabled reports a repository that the Hub has closed.
	ErrDisabled = errors.New("the repository is disabled")
	// ErrOffline reports that something is missing from the cache and nothing may be
	// fetched.
	ErrOffline = errors.New("not in the cache, and the Hub is switched off")
)

// Repo is a repository at a revision.
type Repo struct {
	ID       string // org/name, or name
	Revision string // branch, tag or commit
}

var (
	repoID   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$`)
	commitID = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// ParseRepo reads hf://org/name@revision; without a revision it is main.
func ParseRepo(s string) (Repo, error) {
	rest, ok := strings.CutPrefix(s, Scheme)
	id, rev, at := strings.Cut(rest, "@")
	switch {
	case !ok:
		return Repo{}, fmt.Errorf("source %q does not begin with %s", s, Scheme)
	case !repoID.MatchString(id) || len(id) > 96 || strings.Contains(id, "..") || strings.Contains(id, "--"):
		return Repo{}, fmt.Errorf("source %q: want %sorg/name@revision", s, Scheme)
	case at && (rev == "" || strings.ContainsAny(rev, " \t\n\\?#") || strings.Contains(rev, "..")):
		return Repo{}, fmt.Errorf("source %q: %q is no branch, tag or commit", s, rev)
	case !at:
		rev = "main"
	}
	return Repo{id, rev}, nil
}

func (r Repo) String() string { return Scheme + r.ID + "@" + r.Revision }

// Pinned tells whether the revision is a commit, which never changes.
func (r Repo) Pinned() bool { return commitID.MatchString(r.Revision) }
