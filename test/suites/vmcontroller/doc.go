// Package vmcontroller tests several VM controllers of one cluster, each in its own process.
package vmcontroller
