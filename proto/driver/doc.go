// Package driverpb is the protocol between a machine manager and drivers in other processes. It is
// generated from driver.proto, which documents each message and method.
package driverpb
