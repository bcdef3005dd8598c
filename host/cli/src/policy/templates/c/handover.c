
// Begins the memory that is handed over, because that of any policy may come.
static const char MARK[] = "{{name}} 1 ";
enum { MARK_BYTES = sizeof MARK - 1, MEMORY_BYTES = MARK_BYTES + sizeof learnt };

void exports_millrace_policy_handover_save({{kind}}_policy_list_u8_t *saved) {
  saved->len = MEMORY_BYTES;
  saved->ptr = malloc(MEMORY_BYTES);
  memcpy(saved->ptr, MARK, MARK_BYTES);
  memcpy(saved->ptr + MARK_BYTES, &learnt, sizeof learnt);
}

bool exports_millrace_policy_handover_restore({{kind}}_policy_list_u8_t *saved, {{kind}}_policy_string_t *error) {
  bool is_ours = saved->len == MEMORY_BYTES && memcmp(saved->ptr, MARK, MARK_BYTES) == 0;
  if (is_ours) memcpy(&learnt, saved->ptr + MARK_BYTES, sizeof learnt);
  if (!is_ours) {{kind}}_policy_string_dup(error, "it is no memory of {{name}}");
  {{kind}}_policy_list_u8_free(saved);
  return is_ours;
}
