"""All that is wrong with a job spec, at once.

`walk` finds where in the client's own input an error of pydantic lies, `describe` words it,
`collect` mends the input fault by fault so that rules behind a faulty field are reached too, and
`semantic` knows what only this server knows: uploaded files and allowed folders.
"""
