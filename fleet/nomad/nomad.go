// Package nomad is a fleet that HashiCorp Nomad schedules. Documents are Nomad
// variables written by compare-and-set; a job is registered from a job file that
// operators own, with what shall run as its variables; replicas are allocations.
//
// Before its first call each looks once at what it talks to, as [Check] does. A fleet is
// read in lists, of which only what has changed is asked for by itself; a replica that
// nothing has room for is listed as pending, with the reason, and has no node.
//
// [Store] and [Scheduler] are safe for concurrent use. Revisions are Nomad's modify
// indexes, which grow with every change in the cluster. The package reads neither
// environment nor files: the caller makes the client, and with it address, token
// and TLS. Replicas count as healthy once their checks have passed in a deployment;
// whether they still answer is for those who send to them.
package nomad

import (
	"fmt"

	"github.com/hashicorp/nomad/api"
)

// Config says where a cluster is and who asks. Files are in PEM.
type Config struct {
	Address, Namespace, Region, Token string
	CACert, ClientCert, ClientKey     string // paths; empty: the system's, and none
}

// Dial makes a client. Nothing is sent yet.
func Dial(c Config) (*api.Client, error) {
	config := &api.Config{
		Address: c.Address, Namespace: c.Namespace, Region: c.Region, SecretID: c.Token,
		TLSConfig: &api.TLSConfig{CACert: c.CACert, ClientCert: c.ClientCert, ClientKey: c.ClientKey},
	}
	var client *api.Client
	var err error
	if config.HttpClient, err = newHTTP(config); err == nil {
		client, err = api.NewClient(config)
	}
	if err != nil {
		return nil, fmt.Errorf("reaching Nomad at %s: %w", c.Address, err)
	}
	return client, nil
}
