// Package driverpb is the protocol between a machine manager and drivers in other processes. It is generated from
// driver.proto, which documents all messages and methods.
package driverpb
