// Package network carries packets between the guests of a host.
//
// A guest's gateway, which leads to the host and to the outside, is a network of that guest
// alone. Only packets for other guests come here. A [Switch] has one port for each guest, and
// knows from the hypervisor, not from the guest, which Ethernet and IP addresses the guest has.
// It passes packets like a router that has a route to each guest: from one unicast address to
// another, with new Ethernet addresses and a lower hop limit. So nothing by which machines of
// one link find and configure each other (ARP, neighbour discovery, router advertisements, DHCP)
// ever comes from one guest to another.
package network
