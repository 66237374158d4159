process HIMACH_RUN {
    tag "${meta.id}"
    label 'process_medium'

    conda "${moduleDir}/environment.yml"

    input:
    tuple val(meta), path(trajectory), path(topology)
    val analysis
    path script

    output:
    tuple val(meta), path("${prefix}")            , emit: out
    tuple val(meta), path("${prefix}/*.csv")      , emit: csv , optional: true
    tuple val(meta), path("${prefix}/*.png")      , emit: plot, optional: true
    tuple val(meta), path("${prefix}/run.json")   , emit: record
    tuple val("${task.process}"), val('himach'), eval("himach --version | sed 's/.* //'"), topic: versions, emit: versions_himach

    when:
    task.ext.when == null || task.ext.when

    script:
    def args = task.ext.args ?: ''
    def trajectories = [trajectory].flatten().collect { file -> "--trajectory ${file}" }.join(' ')
    def structure = topology ? "--topology ${topology}" : ''
    def ranks = task.cpus > 1 ? "-n ${task.cpus}" : ''
    prefix = task.ext.prefix ?: "${meta.id}"
    """
    himach run \\
        ${script ?: analysis} \\
        ${trajectories} \\
        ${structure} \\
        ${ranks} \\
        --out ${prefix} \\
        --quiet \\
        ${args}
    """

    stub:
    prefix = task.ext.prefix ?: "${meta.id}"
    """
    mkdir ${prefix}
    touch ${prefix}/run.json ${prefix}/${analysis}.csv
    """
}
