// Package network carries packets between the guests of a host, and has the rules for these packets. Package overlay
// applies the same rules between hosts.
//
// A guest's gateway, which leads to the host and to the outside, is on a network that only this guest uses. This
// network carries only packets for other guests. A [Switch] has one port for each guest, and learns the guest's
// Ethernet and IP addresses from the hypervisor, not from the guest. It forwards unicast packets like a router
// that has a route to each guest: with new Ethernet addresses and a lower hop limit. It therefore never forwards
// the protocols by which machines on the same link find and configure each other (ARP, neighbor discovery, router
// advertisements, DHCP). A guest may nevertheless treat the whole network as its own link: its [Link] responds with
// the router's Ethernet address when it looks for another guest.
package network
