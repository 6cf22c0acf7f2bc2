package identity

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
)

// Accept turns an accepted connection into a TLS connection with one client. It rejects every other client, including
// those with a certificate of the same authority. The protocol names the purpose of the connection and must be the same
// on both sides. If Accept returns an error, the connection is closed. The error is ErrNotAPeer if client is invalid, or
// the reason why the handshake failed.
func (c *Credentials) Accept(ctx context.Context, raw net.Conn, client Peer, protocol string) (*tls.Conn, error) {
	conn, _, err := c.acceptAny(ctx, raw, client, protocol, func(got Peer) bool { return got == client })
	return conn, err
}

// acceptAny is like Accept, but accepts every client for which may returns true, and also returns the identity of
// the client that connected. The parameter client is used in error messages only and must be valid.
func (c *Credentials) acceptAny(ctx context.Context, raw net.Conn, client Peer, protocol string, may func(Peer) bool) (*tls.Conn, Peer, error) {
	var got Peer
	conn, err := c.secure(ctx, raw, side{client, protocol, tls.Server, func() *tls.Config {
		config := c.trust.server(tls.RequireAndVerifyClientCert)
		config.VerifyConnection = func(state tls.ConnectionState) (err error) {
			got, err = c.trust.peerOf(state.PeerCertificates[0]) // the chain is already verified
			if err == nil && !may(got) {
				err = fmt.Errorf("the client is %s, not %s", got, client)
			}
			return err
		}
		return config
	}})
	return conn, got, err
}

// Connect turns a connection into a TLS connection with one server. In all other respects it is like Accept.
func (c *Credentials) Connect(ctx context.Context, raw net.Conn, server Peer, protocol string) (*tls.Conn, error) {
	return c.secure(ctx, raw, side{server, protocol, tls.Client, func() *tls.Config { return c.trust.client(server) }})
}

// side is one side of a channel.
type side struct {
	other    Peer
	protocol string
	new      func(net.Conn, *tls.Config) *tls.Conn
	config   func() *tls.Config
}

func (c *Credentials) secure(ctx context.Context, raw net.Conn, s side) (*tls.Conn, error) {
	conn, err := func() (*tls.Conn, error) {
		if err := s.other.validate(); err != nil {
			return nil, err
		}
		cert, err := c.certificate(ctx)
		if err != nil {
			return nil, err
		}
		config := s.config() // read after the certificate, because both may have changed
		config.Certificates = []tls.Certificate{*cert}
		config.NextProtos = []string{s.protocol}
		conn := s.new(raw, config)
		if err := conn.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		if got := conn.ConnectionState().NegotiatedProtocol; got != s.protocol {
			return nil, fmt.Errorf("the peer uses protocol %q, expected %q", got, s.protocol)
		}
		return conn, nil
	}()
	if err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("securing a connection with %s: %w", s.other, err)
	}
	return conn, nil
}
