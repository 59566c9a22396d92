// Package local is the fleet of one machine: documents and blobs are files,
// replicas are child processes.
//
// [Store] and [Blobs] are the two stores as directories. All of it may be used
// by several processes at once, which is how a command, the watch in the
// background and the routers share one state directory.
package local
