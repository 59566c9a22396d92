package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"llmops/fleet"
	"llmops/serving/route"
)

// intents are the documents of all aliases as this router knows them.
type intents struct {
	followers map[string]*route.Follower
	problems  map[string]string // why the newest document or read was not taken
	wanted    map[string]bool   // to be read soon
	swept     time.Duration     // when the last listing began
	sweeps    int
}

func (in *intents) init() {
	in.followers = map[string]*route.Follower{}
	in.problems = map[string]string{}
	in.wanted = map[string]bool{}
}

// follower is that of alias. One that appears after a listing was not there
// when that began, which is what the listing has shown of it.
func (in *intents) follower(alias string) *route.Follower {
	f := in.followers[alias]
	if f == nil {
		f = &route.Follower{}
		if in.sweeps > 0 {
			f.Read(in.swept, 0, nil)
		}
		in.followers[alias] = f
	}
	return f
}

// readIntents reads every document again and again. These reads, begun here at
// a known time, are what renews leases.
func (r *Router) readIntents(ctx context.Context) {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-next.C:
			err = r.sweep(ctx)
			next.Reset(r.o.Renew)
		case <-r.reread:
			err = r.readWanted(ctx)
		}
		if err != nil && ctx.Err() == nil {
			r.o.Log.Warn("reading the routes", "err", err)
		}
	}
}

// want has the route of alias read soon.
func (r *Router) want(alias string) {
	r.cfg.Lock()
	r.cfg.wanted[alias] = true
	r.cfg.Unlock()
	kick(r.reread)
}

func (r *Router) readWanted(ctx context.Context) error {
	r.cfg.Lock()
	wanted := r.cfg.wanted
	r.cfg.wanted = map[string]bool{}
	r.cfg.Unlock()
	ctx, cancel := context.WithTimeout(ctx, r.o.Renew)
	defer cancel()
	var errs []error
	for alias := range wanted {
		errs = append(errs, r.read(ctx, alias, route.Name(alias)))
	}
	return errors.Join(errs...)
}

func (r *Router) sweep(ctx context.Context) error {
	began := r.o.Now()
	// A store that hangs must not hang the reads that come after it. What it
	// answers late is old anyway.
	ctx, cancel := context.WithTimeout(ctx, r.o.Renew)
	defer cancel()
	docs, err := r.o.Store.List(ctx, route.Prefix)
	if err != nil {
		r.note(err)
		return err
	}
	there := make(map[string]bool, len(docs))
	errs := []error{r.learn(ctx)}
	for _, d := range docs {
		alias, err := route.Alias(d.Name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		there[alias] = true
		if err := r.read(ctx, alias, d.Name); err != nil {
			errs = append(errs, err)
		}
	}
	r.cfg.Lock()
	defer r.cfg.Unlock()
	changed := false
	for alias, f := range r.cfg.followers {
		if !there[alias] {
			changed = f.Read(began, 0, nil) || changed
			delete(r.cfg.problems, alias)
		}
	}
	r.cfg.swept = began
	r.cfg.sweeps++
	if changed {
		r.rebuild()
		defer r.pump()
	}
	return errors.Join(errs...)
}

// read asks the store for one document.
func (r *Router) read(ctx context.Context, alias, name string) error {
	began := r.o.Now()
	doc, err := r.o.Store.Get(ctx, name)
	var d *route.Doc
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		doc.Rev, err = 0, nil
	case err == nil:
		d, err = decode(alias, doc.Body)
	}
	r.cfg.Lock()
	defer r.cfg.Unlock()
	if err != nil {
		r.cfg.problems[alias] = err.Error()
		return fmt.Errorf("reading the route of %s: %w", alias, err)
	}
	delete(r.cfg.problems, alias)
	f := r.cfg.follower(alias)
	before, wasLive := f.Until()
	changed := f.Read(began, doc.Rev, d)
	if after, live := f.Until(); changed || after != before || live != wasLive {
		r.rebuild()
		defer r.pump()
	}
	return nil
}

// note marks all routes with why they could not be read.
func (r *Router) note(err error) {
	r.cfg.Lock()
	defer r.cfg.Unlock()
	for alias := range r.cfg.followers {
		r.cfg.problems[alias] = err.Error()
	}
}

func decode(alias string, body []byte) (*route.Doc, error) {
	d, err := route.Decode(body)
	if err != nil {
		return nil, err
	}
	if d.Alias != alias {
		return nil, fmt.Errorf("the document is of alias %q", d.Alias)
	}
	return &d, nil
}

// watchIntents takes changes as they happen. Like a pushed revision, what a
// watch brings holds at once and renews nothing; a read follows.
func (r *Router) watchIntents(ctx context.Context) {
	r.watch(ctx, route.Prefix, func(d fleet.Doc) {
		alias, err := route.Alias(d.Name)
		if err == nil && d.Body != nil {
			var doc *route.Doc
			if doc, err = decode(alias, d.Body); err == nil {
				err = r.push(alias, d.Rev, *doc)
			}
		}
		if err != nil {
			r.o.Log.Warn("watching the routes", "name", d.Name, "err", err)
		}
		if alias != "" {
			r.want(alias)
		}
	})
}

// push takes a revision that this router did not read itself.
func (r *Router) push(alias string, rev uint64, d route.Doc) error {
	r.cfg.Lock()
	defer r.cfg.Unlock()
	changed, err := r.cfg.follower(alias).Push(r.o.Now(), rev, d)
	if changed {
		r.rebuild()
		defer r.pump()
	}
	return err
}

// watch follows a prefix, beginning anew after an error of the store.
func (r *Router) watch(ctx context.Context, prefix string, fn func(fleet.Doc)) {
	for {
		err := r.o.Store.Watch(ctx, prefix, func(d fleet.Doc) error {
			fn(d)
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		r.o.Log.Warn("watching the store", "prefix", prefix, "err", err)
		if !waitOr(ctx, time.Second, nil) {
			return
		}
	}
}
