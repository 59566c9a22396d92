package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Get reads an answer of at most limit bytes, wherever redirects lead.
func (c *Client) Get(ctx context.Context, at string, limit int64) (body []byte, err error) {
	err = c.answer(ctx, at, "", func(res *http.Response) error {
		if res.StatusCode != http.StatusOK {
			return c.refuse(res)
		}
		defer func() { _ = res.Body.Close() }()
		if body, err = io.ReadAll(io.LimitReader(res.Body, limit+1)); err != nil {
			return &Transient{Err: err}
		}
		if int64(len(body)) > limit {
			return fmt.Errorf("%s answers with more than %d bytes", where(res), limit)
		}
		return nil
	})
	return body, err
}

// Size asks how many bytes a file has, without fetching it.
func (c *Client) Size(ctx context.Context, at string) (size int64, err error) {
	err = c.answer(ctx, at, "bytes=0-0", func(res *http.Response) error {
		text := ""
		switch res.StatusCode {
		case http.StatusOK: // it has no ranges
			text = strconv.FormatInt(res.ContentLength, 10)
		case http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable: // the latter of an empty file
			_, text, _ = strings.Cut(res.Header.Get("Content-Range"), "/")
		default:
			return c.refuse(res)
		}
		_ = res.Body.Close()
		if size, err = strconv.ParseInt(text, 10, 64); err != nil || size < 0 {
			return fmt.Errorf("%s does not tell how long it is: the server has to send Content-Length or Content-Range", where(res))
		}
		return nil
	})
	return size, err
}

func where(res *http.Response) string {
	at := *res.Request.URL
	at.RawQuery, at.User = "", nil // they may hold a signature and a password
	return at.String()
}

// answer has fn take what at answers, wherever redirects lead.
func (c *Client) answer(ctx context.Context, at, ranges string, fn func(*http.Response) error) error {
	return c.Retry(ctx, "asking "+hostOf(at), func() (bool, error) {
		to := at
		for range maxRedirects {
			res, err := c.Ask(ctx, to, ranges, "")
			if err != nil {
				return false, err
			}
			if res.StatusCode/100 != 3 {
				return false, fn(res)
			}
			if to, err = Follow(res); err != nil {
				return false, err
			}
		}
		return false, errors.New("asking " + hostOf(at) + ": redirected in a circle")
	})
}
