# Runs at installation. Writes the completions of hvdb for bash and zsh if hvdb's Python has shtab; otherwise prints
# what is missing.
set(prefix "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
foreach(entry "bash:bash-completion/completions/hvdb" "zsh:zsh/site-functions/_hvdb")
  string(REPLACE ":" ";" entry "${entry}")
  list(GET entry 0 shell)
  list(GET entry 1 path)
  set(file "${CMAKE_INSTALL_PREFIX}/${hvdb_datadir}/${path}")
  execute_process(COMMAND "${prefix}/${hvdb_bindir}/hvdb" completion ${shell}
                  OUTPUT_VARIABLE text ERROR_VARIABLE said RESULT_VARIABLE code ERROR_STRIP_TRAILING_WHITESPACE)
  if(NOT code EQUAL 0)
    message(STATUS "No completion for ${shell}: ${said}")
    continue()
  endif()
  message(STATUS "Installing: $ENV{DESTDIR}${file}")
  file(WRITE "$ENV{DESTDIR}${file}" "${text}")
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${file}")
endforeach()
