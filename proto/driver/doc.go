// Package driverpb is the protocol between a machine manager and drivers in other processes. Its
// messages and methods are generated from driver.proto, which documents them.
package driverpb
