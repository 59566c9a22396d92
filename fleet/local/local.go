// Package local is the fleet of one machine: documents and blobs are files,
// replicas are child processes.
//
// [Store] and [Blobs] are the two stores as directories. [Scheduler] writes
// jobs down as documents and reads what became of them; [Supervisor], of which
// one runs for each state directory, starts the processes, checks them over
// HTTP, restarts them with growing pauses and writes their state down. So a
// command, the supervisor and the routers need no protocol of their own.
//
// A child inherits a locked file named by its nonce. The lock is free when and
// only when the child is gone, which is how a supervisor that takes over after
// a crash knows the children of the one before; a process id proves nothing.
// A supervisor that ends leaves its children running.
//
// All of it may be used by several processes at once. It works on Unix.
package local
