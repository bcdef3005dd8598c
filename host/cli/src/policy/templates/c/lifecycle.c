
bool exports_millrace_policy_lifecycle_init({{kind}}_policy_string_t *config, exports_millrace_policy_lifecycle_info_t *info,
                                            {{kind}}_policy_string_t *error) {
  (void)error;
  {{kind}}_policy_string_free(config);
  {{kind}}_policy_string_dup(&info->name, "{{name}}");
  {{kind}}_policy_string_dup(&info->version, "0.1.0");
  // The host copies these columns and no others.
  info->wants.len = sizeof WANTS / sizeof WANTS[0];
  info->wants.ptr = malloc(sizeof WANTS);
  memcpy(info->wants.ptr, WANTS, sizeof WANTS);
  return true;
}

// This policy has no configuration: its table is to be empty.
bool exports_millrace_policy_lifecycle_check_config({{kind}}_policy_string_t *config, {{kind}}_policy_list_string_t *faults) {
  bool is_empty = config->len == 2 && memcmp(config->ptr, "{}", 2) == 0;
  {{kind}}_policy_string_free(config);
  if (is_empty) return true;
  faults->len = 1;
  faults->ptr = malloc(sizeof *faults->ptr);
  {{kind}}_policy_string_dup(&faults->ptr[0], "this policy takes no configuration; leave `config` out");
  return false;
}
