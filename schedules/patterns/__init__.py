"""Orders given by a rule, each shared by several schedules or by several parts of one."""
