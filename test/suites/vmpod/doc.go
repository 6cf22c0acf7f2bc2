// Package vmpod tests virtual machines whose hypervisors run in Pods of a real kubelet.
package vmpod
