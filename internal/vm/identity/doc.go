// Package identity is the public key infrastructure of the VM controller and hypervisors.
//
// It has a certificate authority ([Authority]), which belongs to the VM controller, and
// identities ([Peer]) in the manner of SPIFFE: a certificate's only name is a URI, either
// millwright://controller or millwright://vm/NAMESPACE/VM/POD. Host names and addresses
// mean nothing.
//
// A process holds [Credentials], which renew its certificate. The controller signs its
// own ([ForController]). A hypervisor exchanges its Pod's bound service account token for
// one ([ForHypervisor]): it generates a key in memory and sends a certificate signing
// request with the token to the controller's [Issuer]. Certificates are good for
// [Lifetime]. Keys are never stored, except for the authority's.
//
// All connections are mutual TLS 1.3. Certificates are verified when a connection is
// made, so a certificate that expires does not end a connection.
package identity
