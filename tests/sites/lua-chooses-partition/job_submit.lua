function slurm_job_submit(job, parts, uid)
  if job.partition ~= nil then
    slurm.log_user("Do not name a partition")
    return slurm.ERROR
  end
  if job.features == nil then
    slurm.log_user("Choose nodes with --constraint")
    return slurm.ERROR
  end
  job.partition = "gpu"
  return slurm.SUCCESS
end
function slurm_job_modify(job, rec, parts, uid) return slurm.SUCCESS end
