// Package identity changes when the way in which processes of the virtual machine system prove who they are does.
//
// There is one [Authority], that of the VM controller. It signs a certificate for the
// controller itself, and one for each hypervisor process, whose [Peer] is the Pod it
// runs in. Both are good for [Lifetime] and made anew long before they end.
//
// A process holds [Credentials]: [ForController] signs for itself, [ForHypervisor]
// sends a certificate request with the Pod's bound token to the controller, whose
// [Issuer] answers it. Keys are made in the process that uses them, and are never
// written anywhere, but for the authority's.
//
// All connections are TLS 1.3. Who is at the other end is read from the one URI in its
// certificate; host names and addresses mean nothing. This is checked when a connection
// is made, so a certificate that runs out does not cut a connection off.
package identity
