function slurm_job_submit(job, parts, uid)
  if job.account == nil then
    slurm.log_user("No account. Use --account")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_job_modify(job, rec, parts, uid) return slurm.SUCCESS end
