# Something that takes as long to make as a test wants, and writes down that it was made, or destroyed.
#
# STUB_LEDGER is a file to which a line is added once it is there, STUB_HOLD a folder: as long as that has a file with
# its name, it is not finished; STUB_FAIL is the name of the one that fails.

variable "name" {
  type = string
}

variable "what" {
  type = any
}

# It is replaced when this changes.
variable "identity" {
  type    = string
  default = ""
}

resource "terraform_data" "this" {
  input            = { name = var.name, what = var.what }
  triggers_replace = var.identity

  provisioner "local-exec" {
    command = <<-EOT
      while [ -n "$STUB_HOLD" ] && [ -e "$STUB_HOLD/$NAME" ]; do sleep 0.05; done
      [ "$STUB_FAIL" != "$NAME" ] || { echo "$STUB_WORDS" >&2; exit 1; }
      [ -z "$STUB_LEDGER" ] || echo "create $NAME" >> "$STUB_LEDGER"
    EOT
    environment = {
      NAME = self.input.name
    }
  }

  provisioner "local-exec" {
    when    = destroy
    command = "[ -z \"$STUB_LEDGER\" ] || echo \"destroy $NAME\" >> \"$STUB_LEDGER\""
    environment = {
      NAME = self.input.name
    }
  }
}
