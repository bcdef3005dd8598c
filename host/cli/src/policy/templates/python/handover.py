

class Handover(exports.Handover):
    # Begins the memory that is handed over, because that of any policy may come.
    MARK = b"{{name}} 1 "

    def save(self):
        return self.MARK + str(memory["learnt"]).encode()

    def restore(self, saved):
        digits = saved[len(self.MARK) :]
        if not saved.startswith(self.MARK) or not digits.isdigit() or len(digits) > 10:
            raise Err("it is no memory of {{name}}")
        memory["learnt"] = min(int(digits), 0xFFFFFFFF)
