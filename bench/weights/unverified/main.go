// Command unverified fetches files as llmops does, by ranges of 32 MiB over eight
// connections, and looks at nothing that it gets: what verifying costs is measured
// against it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"sync"
)

const (
	part  = 32 << 20
	conns = 8
)

func main() {
	out := flag.String("out", "", "the folder")
	flag.Parse()
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableCompression, t.MaxIdleConnsPerHost = true, 64
	c := &http.Client{Transport: t}
	slots, errs := make(chan struct{}, conns), make(chan error, 1)
	var wg sync.WaitGroup
	for _, url := range flag.Args() {
		at, size, err := find(c, url)
		if err != nil {
			log.Fatal(err)
		}
		f, err := os.Create(filepath.Join(*out, path.Base(url)))
		if err != nil {
			log.Fatal(err)
		}
		for off := int64(0); off < size; off += part {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				if err := get(c, at, f, off, min(off+part, size)); err != nil {
					select {
					case errs <- err:
					default:
					}
				}
			})
		}
		defer func() {
			if err := errors.Join(f.Sync(), f.Close()); err != nil {
				log.Fatal(err)
			}
		}()
	}
	wg.Wait()
	select {
	case err := <-errs:
		log.Fatal(err)
	default:
	}
}

// find follows the redirect and learns the size.
func find(c *http.Client, url string) (at string, size int64, err error) {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return "", 0, err
	}
	req.Header.Set("Range", "bytes=0-0")
	res, err := c.Do(req)
	if err != nil {
		return "", 0, err
	}
	_ = res.Body.Close()
	if _, err := fmt.Sscanf(res.Header.Get("Content-Range"), "bytes 0-0/%d", &size); err != nil {
		return "", 0, fmt.Errorf("%s: %s: %w", url, res.Status, err)
	}
	return res.Request.URL.String(), size, nil
}

func get(c *http.Client, at string, f *os.File, off, end int64) error {
	req, err := http.NewRequest(http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, end-1))
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.NewOffsetWriter(f, off)}, struct{ io.Reader }{res.Body}, make([]byte, 256<<10))
	if err == nil && n != end-off {
		err = io.ErrUnexpectedEOF
	}
	return err
}
