package cli

import "github.com/spf13/cobra"

// commands lists what a user can type, in the order of the help.
func commands(e *env) []*cobra.Command {
	return []*cobra.Command{
		in(groupOnboard, newDownloadCmd(e)),
		in(groupOnboard, newQuantiseCmd(e)),
		in(groupPlan, newVersionCmd(e)),
	}
}
