package image

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"

	"github.com/millwright-dev/millwright/internal/vm/metadataservice"
)

// Access is what the URLs of images and boot files may access on the host: its files, and servers that trust its own
// addresses. The authors of URLs are not trusted with these. The zero value allows none of them.
type Access struct {
	// Files is the directory below which file URLs may name files. Links are followed if they stay in it. If empty,
	// file URLs are rejected.
	Files string
	// Servers are addresses of this host that may be used although they would be refused otherwise; see
	// refusedAddress. Port 0 allows all ports.
	Servers []netip.AddrPort
}

// ParseServers parses Access.Servers: addresses IP:PORT, or IP for all its ports, separated by commas.
func ParseServers(list string) ([]netip.AddrPort, error) {
	var servers []netip.AddrPort
	for text := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' }) {
		server, err := netip.ParseAddrPort(text)
		if err != nil {
			address, notAddress := netip.ParseAddr(text)
			if notAddress != nil {
				return nil, fmt.Errorf("%q is not IP or IP:PORT", text)
			}
			server = netip.AddrPortFrom(address, 0)
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// mayDownload reports whether a server may be used.
func (a Access) mayDownload(server netip.AddrPort) bool {
	address := server.Addr().Unmap()
	for _, allowed := range a.Servers {
		if allowed.Addr() == address && (allowed.Port() == 0 || allowed.Port() == server.Port()) {
			return true
		}
	}
	return !refusedAddress(address)
}

// refusedAddress reports whether a server at an address may trust everyone who reaches it: the loopback of the host,
// its links, and metadata services.
func refusedAddress(address netip.Addr) bool {
	return address.IsLoopback() || address.IsUnspecified() || address.IsMulticast() || metadataservice.MayBeAt(address)
}

// newClient returns a client that checks each address to which it connects, after resolving names and also for
// redirects.
func (j *job) newClient(access Access) *http.Client {
	dialer := &net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		server, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if !access.mayDownload(server) {
			return j.rejected("its server has the address %s, from which nothing may be downloaded", server)
		}
		return nil
	}}
	return &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, address)
		},
		TLSHandshakeTimeout: stallLimit,
		ForceAttemptHTTP2:   true,
		DisableKeepAlives:   true, // the client is used for one file
	}}
}
