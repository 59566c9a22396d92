package cli

import (
	"github.com/spf13/cobra"

	"llmops/pipeline"
)

// commands lists what a user can type. The help sorts each group by name.
func commands(e *env) []*cobra.Command {
	return []*cobra.Command{
		in(groupOnboard, newOnboardCmd(e)),
		in(groupOnboard, newDownloadCmd(e)),
		in(groupOnboard, newQuantiseCmd(e)),
		in(groupOnboard, newStageCmd(e, pipeline.StagePlan, "Check that a model fits and what its evidence can show")),
		in(groupOnboard, newBenchmarkCmd(e)),
		in(groupOnboard, newStageCmd(e, pipeline.StageEval, "Compare the candidate's answers with its parent's")),
		in(groupOnboard, newStageCmd(e, pipeline.StageShadow, "Compare copies of live requests")),
		in(groupOnboard, newStageCmd(e, pipeline.StageCanary, "Give the candidate a growing share of live traffic")),
		in(groupOnboard, newStageCmd(e, pipeline.StagePromote, "Make the candidate live")),
		in(groupOnboard, newRunsCmd(e)),
		in(groupOperate, newStatusCmd(e)),
		in(groupOperate, newRollbackCmd(e)),
		in(groupOperate, newDrillCmd(e)),
		in(groupOperate, newModelsCmd(e)),
		in(groupOperate, newLogsCmd(e)),
		in(groupOperate, newDownCmd(e)),
		in(groupOperate, newFleetCmd(e)),
		in(groupPlan, newSizeCmd(e)),
		in(groupPlan, newCostCmd(e)),
		in(groupPlan, newInitCmd(e)),
		in(groupPlan, newDoctorCmd(e)),
		in(groupPlan, newVersionCmd(e)),
		in(groupDaemon, newRouterCmd(e)),
		in(groupDaemon, newEngineCmd(e)),
		in(groupDaemon, newWatchCmd(e)),
		newTrafficCmd(e),
	}
}
