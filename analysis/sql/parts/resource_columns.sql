-- What the typed tables need of a resource: looked up once for all spans of a message (columns of kvlens_arriving).
toLowCardinality(resource['service.name']) AS service,
            toLowCardinality(resource['service.instance.id']) AS Resource_service_instance_id,
            toLowCardinality(resource['process.pid']) AS Resource_process_pid,
            toLowCardinality(resource['kvlens.role']) AS Resource_kvlens_role,
            toLowCardinality(resource['kvlens.mode']) AS Resource_kvlens_mode,
            toLowCardinality(resource['kvlens.clock.boot_id']) AS Resource_kvlens_clock_boot_id,
            toLowCardinality(resource['kvlens.clock.anchor_unix_ns']) AS Resource_kvlens_clock_anchor_unix_ns,
            toLowCardinality(resource['kvlens.clock.anchor_perf_ns']) AS Resource_kvlens_clock_anchor_perf_ns,
            toLowCardinality(concat(Resource_kvlens_clock_boot_id, ' ',
                toString(toInt64OrZero(Resource_kvlens_clock_anchor_unix_ns)), ' ',
                toString(toInt64OrZero(Resource_kvlens_clock_anchor_perf_ns)))) AS Resource_process
