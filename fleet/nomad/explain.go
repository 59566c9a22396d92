package nomad

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// errUnfit is a cluster that trying again does not make better.
var errUnfit = errors.New("this cluster will not do")

func noNamespace(address, namespace string) error {
	return fmt.Errorf("%w: it has no namespace %q: create it with nomad namespace apply %s, or name another as nomad.namespace of fleet.yaml (%s)", errUnfit, namespace, namespace, address)
}

// status is the HTTP status of an error of the API, 0 when there was no answer.
func status(err error) int {
	var res api.UnexpectedResponseError
	if errors.As(err, &res) {
		return res.StatusCode()
	}
	return 0
}

// explain adds to an error of the API what the reader of it can do.
func explain(err error, address, namespace, needs string) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	switch code := status(err); {
	case code == 0:
		return unreached(err, address)
	case code == http.StatusForbidden && strings.Contains(text, "ACL token not found"):
		return fmt.Errorf("%w: the cluster does not know the token, or it has expired: set NOMAD_TOKEN to another", err)
	case code == http.StatusForbidden:
		return fmt.Errorf("%w: the token lacks %s: attach a policy that grants it; llmops.policy.hcl is all that llmops needs", err, needs)
	case strings.Contains(text, "nonexistent namespace"):
		return fmt.Errorf("%w: %w", noNamespace(address, namespace), err)
	case code == http.StatusBadRequest && strings.Contains(text, "HTTP request to an HTTPS server"):
		return fmt.Errorf("%w: %w: the agent at %s speaks TLS: write https:// in nomad.address", errUnfit, err, address)
	case strings.Contains(text, "No cluster leader"):
		return fmt.Errorf("%w: the servers are choosing a leader, or most of them are gone: look at nomad server members", err)
	case code == http.StatusNotFound:
		return fmt.Errorf("%w: the cluster knows no such endpoint; Nomad %s or later is needed", err, Least)
	}
	return err
}

// unreached is about a request that was not answered.
func unreached(err error, address string) error {
	var (
		signer   x509.UnknownAuthorityError
		host     x509.HostnameError
		bad      x509.CertificateInvalidError
		verify   *tls.CertificateVerificationError
		alert    tls.AlertError
		noTLS    tls.RecordHeaderError
		dialling *net.OpError
		name     *net.DNSError
	)
	switch {
	case errors.As(err, &signer):
		return fmt.Errorf("%w: %w: name the file of the authority that signed it as nomad.ca_cert", errUnfit, err)
	case errors.As(err, &host):
		return fmt.Errorf("%w: %w: the certificate is for another name than %s; use one of its names in nomad.address", errUnfit, err, address)
	case errors.As(err, &bad), errors.As(err, &verify):
		return fmt.Errorf("%w: %w: the certificate of %s is not valid", errUnfit, err, address)
	case errors.As(err, &noTLS), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%w: %w: the agent at %s speaks no TLS: write http:// in nomad.address, or turn TLS on", errUnfit, err, address)
	case errors.As(err, &alert), strings.Contains(err.Error(), "remote error: tls:"):
		return fmt.Errorf("%w: %w: the agent wants a client certificate that it trusts: nomad.client_cert and nomad.client_key", errUnfit, err)
	case errors.As(err, &name):
		return fmt.Errorf("%w: nomad.address %s names no host that is known here", err, address)
	case errors.As(err, &dialling):
		return fmt.Errorf("%w: no Nomad agent answers at %s: is it running, and is nomad.address right?", err, address)
	}
	return err
}

// passes tells failures that the next try may not have.
func passes(err error) bool {
	code := status(err)
	return !errors.Is(err, errUnfit) && (code == 0 || code >= http.StatusInternalServerError)
}
