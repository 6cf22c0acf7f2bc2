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

// Access lists what the URLs of images and boot files may access on this host: files of the host, and servers that
// trust connections from the host's own addresses. The authors of URLs are not trusted with either. The zero value
// allows nothing.
type Access struct {
	// Files is the directory whose files may be named by file URLs. Links are followed if they stay in the
	// directory. If empty, file URLs are rejected.
	Files string
	// Servers are addresses of this host that are allowed although they would otherwise be refused; see
	// refusedAddress. Port 0 allows all ports.
	Servers []netip.AddrPort
}

// ParseServers parses Access.Servers: a comma-separated list of addresses in the form IP:PORT, or IP for all
// ports.
func ParseServers(list string) ([]netip.AddrPort, error) {
	var servers []netip.AddrPort
	for text := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' }) {
		server, err := netip.ParseAddrPort(text)
		if err != nil {
			address, notAddress := netip.ParseAddr(text)
			if notAddress != nil {
				return nil, fmt.Errorf("invalid address %q; expected IP or IP:PORT", text)
			}
			server = netip.AddrPortFrom(address, 0)
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// mayDownload reports whether downloads from a server are allowed.
func (a Access) mayDownload(server netip.AddrPort) bool {
	address := server.Addr().Unmap()
	for _, allowed := range a.Servers {
		if allowed.Addr() == address && (allowed.Port() == 0 || allowed.Port() == server.Port()) {
			return true
		}
	}
	return !refusedAddress(address)
}

// refusedAddress reports whether a server at this address may trust everyone who reaches it. This applies to the
// loopback interface of the host, to link-local addresses, and to metadata services.
func refusedAddress(address netip.Addr) bool {
	return address.IsLoopback() || address.IsUnspecified() || address.IsMulticast() || metadataservice.MayBeAt(address)
}

// newClient returns a client that checks each address to which it connects, after it has resolved the name. This
// includes the targets of redirects.
func (j *job) newClient(access Access) *http.Client {
	dialer := &net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		server, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if !access.mayDownload(server) {
			return j.rejected("its server has the address %s, from which downloads are not allowed", server)
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
		DisableKeepAlives:   true, // the client is used for a single file
	}}
}
